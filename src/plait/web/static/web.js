// The script of plait web: live updates, clocks, the list of items, find, and commands beside buttons.
// Pages work without it.  It writes no HTML of its own: the server sends what is safe.
"use strict";

const byId = (id) => document.getElementById(id);

// ── clocks ────────────────────────────────────────────────────────────────

function clockText(seconds) {
  const tenths = Math.max(0, Math.floor(seconds * 10));
  if (tenths < 600) return `${Math.floor(tenths / 10)}.${tenths % 10} s`;
  const whole = Math.floor(tenths / 10);
  const two = (n) => String(n).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

function showClocks() {
  const now = Date.now() / 1000;
  for (const one of document.querySelectorAll("[data-since]")) {
    one.textContent = clockText(now - Number(one.dataset.since));
  }
}

function showMoments(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    const at = new Date(one.dateTime);
    if (!Number.isNaN(at.getTime())) one.title = at.toLocaleString();
  }
}

// ── replacing parts of the page ───────────────────────────────────────────

function parse(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return holder.content;
}

// A part in which somebody selects text is replaced when nothing of it is selected any more.
const held = new Map();

function isSelectedIn(root) {
  const chosen = getSelection();
  return chosen !== null && !chosen.isCollapsed && root.contains(chosen.anchorNode);
}

document.addEventListener("selectionchange", () => {
  if (!held.size) return;
  for (const [id, html] of held) replacePart(id, html);
  if (!held.size) refreshFind();
});

function replacePart(id, html) {
  const old = byId(id);
  const fresh = parse(html).firstElementChild;
  if (!old || !fresh) return;
  if (isSelectedIn(old)) {
    held.set(id, html);
    return;
  }
  held.delete(id);
  if (old.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) {
    if (id === "run-head") return; // somebody fills in a form
  }
  const focused = old.contains(document.activeElement) ? placeOf(document.activeElement, old) : null;
  const opened = new Set([...old.querySelectorAll("details[open][id]")].map((one) => one.id));
  const scrolls = scrollState(old);
  const boxes = [...old.querySelectorAll("[data-find]")];
  old.replaceWith(fresh);
  // A box keeps what was typed, and where its caret is.
  for (const one of boxes) fresh.querySelector(`#${CSS.escape(one.id)}`)?.replaceWith(one);
  for (const one of fresh.querySelectorAll("details[id]")) if (opened.has(one.id)) one.open = true;
  restoreScroll(fresh, scrolls);
  showMoments(fresh);
  if (focused) at(fresh, focused)?.focus({ preventScroll: true });
}

const scrollers = (root) => [root, ...root.querySelectorAll("pre, .scroll, .tree-card")];

function scrollState(root) {
  return scrollers(root).map((one) => ({
    top: one.scrollTop,
    left: one.scrollLeft,
    atEnd: one.scrollHeight - one.scrollTop - one.clientHeight < 30,
  }));
}

function restoreScroll(root, states) {
  scrollers(root).forEach((one, index) => {
    const state = states[index];
    if (!state) return;
    one.scrollTop = one.dataset.follow !== undefined && state.atEnd ? one.scrollHeight : state.top;
    one.scrollLeft = state.left;
  });
}

// The place of an element inside another: its id, or the address of a link.
function placeOf(element, root) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  const address = element.getAttribute("href");
  if (address) return `a[href="${CSS.escape(address)}"]`;
  return element === root ? ":scope" : null;
}

function at(root, place) {
  return place === ":scope" ? root : root.querySelector(place);
}

// ── live updates ──────────────────────────────────────────────────────────

const AGAIN = 3000;
let source = null;
let again = 0;

function disconnect() {
  clearTimeout(again);
  source?.close();
}

function connect() {
  disconnect();
  const address = document.body.dataset.live;
  if (!address || !window.EventSource || document.hidden) return;
  const state = byId("connection");
  source = new EventSource(address);
  source.addEventListener("open", () => {
    state.textContent = "live";
    state.classList.remove("is-lost");
  });
  source.addEventListener("error", () => {
    state.textContent = "not connected; trying again";
    state.classList.add("is-lost");
    // After an answer such as 401 or 503 a browser does not try again by itself.
    if (source.readyState === EventSource.CLOSED) again = setTimeout(connect, AGAIN);
  });
  source.addEventListener("parts", (message) => {
    const parts = JSON.parse(message.data);
    const before = document.querySelector("#run-head .pill .word")?.textContent;
    for (const [id, html] of Object.entries(parts)) replacePart(id, html);
    const after = document.querySelector("#run-head .pill .word")?.textContent;
    if (before && after && before !== after) byId("announce").textContent = `the run is ${after}`;
    if ("item-counts" in parts) items?.changed();
    refreshFind();
    showClocks();
  });
  source.addEventListener("gone", (message) => {
    source.close();
    const { what } = JSON.parse(message.data);
    state.textContent = what;
    state.classList.add("is-lost");
    byId("announce").textContent = what;
    for (const one of document.querySelectorAll("#run-head button")) one.disabled = true;
  });
}

window.addEventListener("pagehide", disconnect);
// A browser has six connections to a server: tabs that nobody sees must not keep them.
document.addEventListener("visibilitychange", connect);
window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

// ── the list of items ─────────────────────────────────────────────────────

const ROW = 30;
const WINDOW = 100;
let items = null;

class ItemList {
  constructor(list) {
    this.list = list;
    this.rows = byId("item-rows");
    this.total = Number(list.dataset.total);
    this.offset = 0;
    this.busy = false;
    this.again = false;
    this.uncounted = this.total < 0; // the page came before the items were read
    this.space = document.createElement("div");
    this.space.className = "item-space";
    this.rows.classList.add("is-placed");
    list.append(this.space);
    this.space.append(this.rows);
    this.place();
    if (this.uncounted) this.load(0);
    list.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.timer = 0;
    byId("item-search").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.choose(), 120);
    });
    for (const one of document.querySelectorAll("input[name=state]")) {
      one.addEventListener("change", () => this.choose());
    }
  }

  place() {
    this.space.setAttribute("data-rows", this.total);
    this.space.style.height = `${Math.max(this.total * ROW, 1)}px`;
    this.rows.style.top = `${this.offset * ROW}px`;
  }

  choose() {
    this.list.scrollTop = 0;
    this.load(0);
  }

  changed() {
    this.load(this.offset);
  }

  scrolled() {
    const first = Math.floor(this.list.scrollTop / ROW);
    const last = first + Math.ceil(this.list.clientHeight / ROW);
    if (first < this.offset || last > this.offset + this.rows.childElementCount) {
      if (this.offset + this.rows.childElementCount >= this.total && first >= this.offset) return;
      this.load(Math.max(0, first - 30));
    }
  }

  async load(offset) {
    if (this.busy) {
      this.again = true;
      this.wanted = offset;
      return;
    }
    this.busy = true;
    const address = new URL(this.list.dataset.items, location.href);
    address.searchParams.set("offset", offset);
    address.searchParams.set("limit", WINDOW);
    address.searchParams.set("state", document.querySelector("input[name=state]:checked")?.value ?? "");
    address.searchParams.set("q", byId("item-search").value);
    if (this.uncounted) address.searchParams.set("counts", "1");
    try {
      const answer = await fetch(address);
      if (answer.ok) {
        const found = parse(await answer.text()).firstElementChild;
        const focused = this.rows.contains(document.activeElement) ? placeOf(document.activeElement, this.rows) : null;
        this.offset = Number(found.dataset.offset);
        this.total = Number(found.dataset.total);
        const counts = found.querySelector("#item-counts");
        if (counts) {
          byId("item-counts").replaceWith(counts);
          this.uncounted = false;
        }
        this.rows.replaceChildren(...found.childNodes);
        this.place();
        showClocks();
        if (focused) at(this.rows, focused)?.focus({ preventScroll: true });
      }
    } catch {
      // The connection is lost: the line at the top says so.
    } finally {
      this.busy = false;
    }
    if (this.again) {
      this.again = false;
      setTimeout(() => this.load(this.wanted), 100);
    } else {
      this.scrolled();
    }
  }
}

// ── find in an output ─────────────────────────────────────────────────────

let found = [];
let here = -1;

function find(box) {
  const root = byId(box.dataset.find);
  const wanted = box.value.toLowerCase();
  found = [];
  if (root && wanted) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && found.length < 5000) {
      const text = walker.currentNode.data.toLowerCase();
      for (let from = text.indexOf(wanted); from >= 0; from = text.indexOf(wanted, from + wanted.length)) {
        const range = new Range();
        range.setStart(walker.currentNode, from);
        range.setEnd(walker.currentNode, from + wanted.length);
        found.push(range);
      }
    }
  }
  here = Math.min(Math.max(here, found.length ? 0 : -1), found.length - 1);
  showFound(box);
}

function showFound(box) {
  if (window.CSS?.highlights) {
    CSS.highlights.set("found", new Highlight(...found));
    CSS.highlights.set("found-here", new Highlight(...(here >= 0 ? [found[here]] : [])));
  }
  const words = box.value ? (found.length ? `${here + 1} of ${found.length}` : "not found") : "";
  box.parentElement.querySelector("output").textContent = words;
}

function findStep(box, step) {
  if (!found.length) return;
  here = (here + step + found.length) % found.length;
  found[here].startContainer.parentElement.scrollIntoView({ block: "center" });
  showFound(box);
}

function refreshFind() {
  const box = document.querySelector("[data-find]");
  if (box?.value) find(box);
}

document.addEventListener("input", (event) => {
  const box = event.target.closest("[data-find]");
  if (box) { here = 0; find(box); }
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-find-step]");
  if (button) findStep(button.parentElement.querySelector("[data-find]"), Number(button.dataset.findStep));
});

// ── commands beside buttons ───────────────────────────────────────────────

function quote(word) {
  return /^[A-Za-z0-9_@%+=:,.\/-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

function showCommand(form) {
  const code = form.querySelector("[data-command]");
  if (!code) return;
  const words = [code.dataset.command];
  for (const field of form.querySelectorAll("[data-input]")) {
    if (field.value) words.push("-i", quote(`${field.dataset.input}=${field.value}`));
  }
  // A secret is in no command: the command reads it.
  const isGiven = [...form.querySelectorAll("[data-secret]")].some((field) => field.value);
  if (isGiven && !code.dataset.command.endsWith(" -i @-")) words.push("-i @-");
  if (code.dataset.commandEnd) words.push(code.dataset.commandEnd);
  for (const field of form.querySelectorAll("[data-adds]:checked")) {
    const [flag, ...rest] = field.dataset.adds.split(" ");
    words.push(flag, ...(rest.length ? [quote(rest.join(" "))] : []));
  }
  code.textContent = words.join(" ");
}

document.addEventListener("input", (event) => { if (event.target.form) showCommand(event.target.form); });
document.addEventListener("change", (event) => {
  if (event.target.form?.id === "run-tools") event.target.form.requestSubmit();
});

// ── keys ──────────────────────────────────────────────────────────────────

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const isField = event.target.matches("input, textarea, select");
  if (event.key === "Enter" && event.target.matches("[data-find]")) {
    event.preventDefault();
    findStep(event.target, event.shiftKey ? -1 : 1);
  }
  if (isField) return;
  if (event.key === "/") {
    const box = document.querySelector("[data-find], #item-search, #run-search");
    if (box) { event.preventDefault(); box.focus(); }
  }
  const link = event.target.closest(".tree a");
  if (link && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    const all = [...document.querySelectorAll(".tree a")];
    event.preventDefault();
    all[all.indexOf(link) + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
  }
});

// ── begin ─────────────────────────────────────────────────────────────────

document.addEventListener("DOMContentLoaded", () => {
  showMoments(document);
  const list = byId("item-list");
  if (list) items = new ItemList(list);
  for (const form of document.forms) showCommand(form);
  connect();
  showClocks();
  setInterval(showClocks, 500);
});
