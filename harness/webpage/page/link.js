// In Locust's own page: a link to ours.

const link = document.createElement("a");
link.href = "./harness";
link.textContent = "TTFT, ITL and the knee, live";
// above everything, in the flow: a floating button covers the form's fields
link.style.cssText = "display:block;padding:.35rem 1rem;text-align:center;background:#00795a;color:#fff;font:600 14px/1.4 system-ui,sans-serif;text-decoration:none";
document.body.prepend(link);
