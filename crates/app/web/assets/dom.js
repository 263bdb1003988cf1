// Elements, numbers and words. Whatever comes from the server becomes text, never markup.

/** An element: attributes, listeners (`onclick`), children; strings become text. */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) { element.addEventListener(name.slice(2), value); }
    else if (value === true) { element.setAttribute(name, ""); }
    else if (value !== false && value !== null && value !== undefined) { element.setAttribute(name, value); }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets an element's text if it is another. */
export function say(element, text) {
  if (element.textContent !== text) { element.textContent = text; }
}

const KEY = "vtax-key";

/** Keeps what a token was changed for: pages of other ports get the cookie, and never this. */
export function keepKey(key) { localStorage.setItem(KEY, key); }

function withKey(headers) {
  const key = localStorage.getItem(KEY);
  return key ? { ...headers, "vtax-key": key } : headers;
}

/** What the server answers; an error with its words where it refuses. */
export async function get(path) {
  let response;
  try {
    response = await fetch(path, { headers: withKey({}) });
  } catch {
    throw new Error("vtax web does not answer. Is it still running?");
  }
  return checked(response);
}

async function checked(response) {
  // The token may have been revoked.
  if (response.status === 401) { document.dispatchEvent(new Event("stranger")); }
  const body = await response.json();
  if (!response.ok) { throw new Error(body.error); }
  return body;
}

/** Asks the server to do something; an error with its words where it refuses. */
export async function post(path, body) {
  let response;
  try {
    response = await fetch(path, { method: "POST", headers: withKey({ "Content-Type": "application/json" }), body: JSON.stringify(body) });
  } catch {
    throw new Error("vtax web does not answer. Is it still running?");
  }
  return checked(response);
}

/** An element of a drawing. */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) { element.setAttribute(name, value); }
  element.append(...children.flat());
  return element;
}

/** Percent of a processor, watts: one digit after the point, two below ten. */
export function fixed(value) {
  if (value === null || value === undefined) { return "–"; }
  return value.toFixed(Math.abs(value) < 9.995 ? 2 : 1);
}

/** Counts a second: 950, 12.3 k, 4.56 M. */
export function rate(value) {
  if (value === null || value === undefined) { return "–"; }
  for (const [limit, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (value >= limit) { return (value / limit).toPrecision(3) + unit; }
  }
  return value < 10 ? String(Math.round(value * 10) / 10) : String(Math.round(value));
}

/** A value with three digits and its unit: 12.3 ms, 45.6 k request/s, 87 %. */
export function quantity(value, unit) {
  if (value === null || value === undefined) { return "–"; }
  const size = Math.abs(value);
  const small = ["s", "J", "W"].includes(unit);
  const scales = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], ...(small ? [[1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]] : [])];
  const plain = unit === "%" || size === 0 || (unit === "s" && size >= 1);
  const [scale, prefix] = plain ? [1, ""] : scales.find(([one]) => size >= one) || [small ? 1e-9 : 1, small ? "n" : ""];
  const digits = Number((value / scale).toPrecision(3));
  return `${digits} ${prefix}${unit}`.trimEnd();
}

/** A span of time: 45 s, 3 min 20 s, 2 h 05 min. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) { return `${s} s`; }
  if (s < 3600) { return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`; }
  return `${Math.floor(s / 3600)} h ${String(Math.floor(s / 60) % 60).padStart(2, "0")} min`;
}

/** The time of day, of seconds since 1970. */
export function clock(at, seconds = true) {
  const time = new Date(at * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const text = `${two(time.getHours())}:${two(time.getMinutes())}`;
  return seconds ? `${text}:${two(time.getSeconds())}` : text;
}

/** The time zone of the page at that time: UTC, UTC+01:00. */
export function zone(at) {
  const minutes = -new Date(at * 1000).getTimezoneOffset();
  const two = (number) => String(Math.floor(Math.abs(number))).padStart(2, "0");
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "−" : "+"}${two(minutes / 60)}:${two(minutes % 60)}`;
}

/** 1 guest, 2 guests. */
export function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** What went wrong, in a box. */
export function trouble(text) {
  return h("p", { class: "note", role: "alert" }, text);
}

/** A time that the server wrote, in the reader's time. */
export function when(rfc3339) {
  const time = new Date(rfc3339);
  if (Number.isNaN(time.getTime())) { return rfc3339; }
  const two = (number) => String(number).padStart(2, "0");
  const at = time.getTime() / 1000;
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock(at, false)} ${zone(at)}`;
}

/** What is not measured says so. */
export function badge(source) {
  return source && source !== "measured" ? h("span", { class: "badge" }, source) : null;
}

/** A report opens as a page of its own, in the theme of this one. */
export const reportLink = (dir, words) => pageLink(`/report?dir=${encodeURIComponent(dir)}`, words);

/** A link to a page that this server makes; it opens in the theme of this one. */
export function pageLink(address, words) {
  const dark = document.documentElement.dataset.theme
    || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  return h("a", { href: `${address}#${dark}`, target: "_blank", rel: "noopener" }, words);
}
