// In Locust's own page: where TTFT is, as Locust's statistics are of whole requests.

const bar = document.createElement("div");
// above everything, in the flow: a floating button covers the form's fields
bar.style.cssText = "display:flex;flex-wrap:wrap;gap:.3rem 1rem;align-items:center;justify-content:center;padding:.4rem 1rem;background:#e8f3ef;color:#16181d;font:14px/1.4 system-ui,sans-serif";
const link = document.createElement("a");
link.href = "./harness";
link.textContent = "Open the live page";
link.style.cssText = "padding:.2rem .9rem;border-radius:.4rem;background:#00694f;color:#fff;font-weight:600;text-decoration:underline";
bar.append("Locust's statistics count whole requests. TTFT, ITL and the knee are on the live page. ", link);
document.body.prepend(bar);
