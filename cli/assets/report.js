// All of it is convenience: the page shows the same without.
"use strict";

// A link to something inside of closed details opens them.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let node = target; node; node = node.parentElement) {
    if (node.tagName === "DETAILS") node.open = true;
  }
  const inner = target.querySelector(":scope > details");
  if (inner) inner.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();

// Values under the pointer, or by arrow keys.
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg");
  const output = chart.querySelector("output");
  const peak = output.textContent;
  const curves = [...svg.querySelectorAll(".curve")].map((path) => ({
    name: path.dataset.name,
    values: path.dataset.values.split("|"),
  }));
  const count = curves[0].values.length;
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  let at = 0;
  const show = (index) => {
    at = Math.max(0, Math.min(count - 1, index));
    const us = ((at * chart.dataset.span) / count / 1000).toFixed(2);
    const values = curves.map((curve) => (curves.length > 1 ? curve.name + " " : "") + curve.values[at]);
    output.textContent = "at " + us + "\u00a0\u00b5s: " + values.join(", ");
    cursor.setAttribute("d", "M" + (((at + 0.5) / count) * 400).toFixed(1) + " 0V100");
    svg.append(cursor);
  };
  const hide = () => {
    output.textContent = peak;
    cursor.remove();
  };
  svg.tabIndex = 0;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(Math.floor(((event.clientX - box.left) / box.width) * count));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(at + step);
  });
}

// One button to open all packets of a ladder, and one to copy the text.
for (const ladder of document.querySelectorAll(".ladder")) {
  const button = document.createElement("button");
  const rungs = ladder.querySelectorAll(".rung");
  const label = () => (button.textContent = ladder.querySelector(".rung:not([open])") ? "open all packets" : "close all packets");
  button.addEventListener("click", () => {
    const open = Boolean(ladder.querySelector(".rung:not([open])"));
    for (const rung of rungs) rung.open = open;
    label();
  });
  label();
  ladder.querySelector("h4").append(" ", button);
}
for (const text of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) continue;
  const button = document.createElement("button");
  button.textContent = "copy";
  button.addEventListener("click", () => {
    navigator.clipboard.writeText(text.textContent).then(
      () => (button.textContent = "copied"),
      () => getSelection().selectAllChildren(text),
    );
  });
  text.before(button);
}
