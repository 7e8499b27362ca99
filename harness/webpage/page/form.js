// The start form: fields as the server lists them; what is wrong with one stands beneath it.

import { el } from "./elements.js";

export async function post(path, body = {}) {
  const answer = await fetch(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return answer.json();
}

function control(name, field, value) {
  const shared = { id: `f-${name}`, name, "aria-describedby": `h-${name} e-${name}` };
  if (!field.choices.length) {
    const digits = /^\d+$/.test(value) || field.label.endsWith(" tokens");
    return el("input", { ...shared, value, placeholder: field.placeholder, autocomplete: "off", spellcheck: "false", ...(digits ? { inputmode: "numeric" } : {}) });
  }
  const options = field.choices.map((choice) => el("option", choice === value ? { value: choice, selected: "" } : { value: choice }, choice));
  return el("select", shared, ...options);
}

function tell(form, wrong) {
  for (const input of form.elements) {
    if (!input.name) continue;
    input.setAttribute("aria-invalid", String(input.name in wrong));
    form.querySelector(`#e-${input.name}`).textContent = wrong[input.name] || "";
  }
  form.querySelector("#e-form").textContent = wrong[""] || "";
  const first = Object.keys(wrong).find((name) => name);
  if (first) form.elements[first].focus();
}

export function build(form, fields, given, started) {
  const rows = Object.entries(fields).map(([name, field]) =>
    el("div", name === "host" || name === "slo" ? { class: "long" } : {},
      el("label", { for: `f-${name}` }, field.label), control(name, field, given[name] || ""),
      el("small", { id: `h-${name}` }, field.hint), el("small", { id: `e-${name}`, class: "wrong", role: "alert" })));
  const button = el("button", { type: "submit" }, "Start");
  form.replaceChildren(...rows, el("div", { class: "send" }, button, el("small", { id: "e-form", class: "wrong", role: "alert" })));
  form.onsubmit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const { wrong } = await post("harness/start", Object.fromEntries(new FormData(form)));
      tell(form, wrong);
      if (!Object.keys(wrong).length) started();
    } catch (error) {
      tell(form, { "": `The harness did not accept it (${error.message}); reload this page and try again.` });
    } finally {
      button.disabled = false;
    }
  };
}
