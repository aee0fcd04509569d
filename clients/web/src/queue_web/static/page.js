// queue_web works without this.  It reads the page again and changes what is different, so that
// focus, scroll, what was opened and what was ticked stay; and it gives plots a keyboard.
"use strict";

const KEPT = new Set(["open", "tabindex", "role", "aria-valuenow", "aria-valuetext",
    "aria-valuemin", "aria-valuemax", "aria-label"]);

// Whether an element of the new page is that of the old one.
function same(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName &&
        (a.nodeType !== 1 || ((a.id || "") === (b.id || "") && a.dataset.key === b.dataset.key));
}

function changeAttributes(from, to) {
    const live = from.nodeName === "svg" && from.hasAttribute("tabindex");
    for (const { name } of [...from.attributes])
        if (!to.hasAttribute(name) && !KEPT.has(name)) from.removeAttribute(name);
    for (const { name, value } of to.attributes)
        if (from.getAttribute(name) !== value && name !== "open" && !(live && KEPT.has(name)))
            from.setAttribute(name, value);
}

// Makes the children of one element those of another.  Elements that are still there stay.
function change(from, to) {
    let next = from.firstChild;
    for (const wanted of [...to.childNodes]) {
        let found = next;
        while (found && !same(found, wanted)) found = found.nextSibling;
        if (!found) {
            from.insertBefore(wanted, next);
            continue;
        }
        if (wanted.nodeType === 1 && !wanted.dataset.key && !wanted.id && found !== next)
            found = null;           // only what has a name is looked for further on
        if (!found) {
            from.insertBefore(wanted, next);
            continue;
        }
        while (next !== found) {
            const gone = next;
            next = next.nextSibling;
            gone.remove();
        }
        next = found.nextSibling;
        if (found.nodeType === 3) {
            if (found.data !== wanted.data) found.data = wanted.data;
        } else if (found.nodeType === 1) {
            changeAttributes(found, wanted);
            if (!["INPUT", "SELECT", "TEXTAREA"].includes(found.nodeName)) change(found, wanted);
        }
    }
    while (next) {
        const gone = next;
        next = next.nextSibling;
        gone.remove();
    }
}

function main() { return document.getElementById("main"); }

async function refresh() {
    const address = new URL(location.href);
    address.searchParams.set("auto", "1");
    const answer = await fetch(address, { credentials: "same-origin" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    if (!fresh || !page.getElementById("where")) {
        if (answer.status === 503) return;          // the database will be back
        location.reload();
        return;
    }
    page.getElementById("live")?.replaceWith(document.getElementById("live") || "");
    if (!page.getElementById("notice") && document.getElementById("notice"))
        fresh.prepend(document.getElementById("notice").cloneNode(true));
    document.title = page.title;
    if (fresh.dataset.refresh) main().dataset.refresh = fresh.dataset.refresh;
    else delete main().dataset.refresh;
    change(main(), fresh);
    change(document.getElementById("where"), page.getElementById("where"));
    change(document.getElementById("read"), page.getElementById("read"));
    if (!document.getElementById("live") && page.querySelector(".live")) addSwitch();
    addKeys();
}

//
// The switch that stops it
//

let stopped = sessionStorage.getItem("stopped") === "1";

function addSwitch() {
    const place = document.getElementById("live");
    if (!place) return;
    const button = document.createElement("button");
    button.type = "button";
    const say = () => { button.textContent = stopped ? "▷ Refresh goes on" : "‖ Stop refreshing"; };
    button.addEventListener("click", () => {
        stopped = !stopped;
        sessionStorage.setItem("stopped", stopped ? "1" : "0");
        say();
    });
    say();
    place.replaceChildren(button);
}

async function goOn() {
    const seconds = Number(main()?.dataset.refresh);
    if (!seconds) return;
    await new Promise(done => setTimeout(done, seconds * 1000));
    const chosen = !getSelection().isCollapsed;     // it would be lost
    if (!document.hidden && !chosen && (!stopped || seconds === 1))
        try { await refresh(); } catch { /* the next one may come through */ }
    goOn();
}

//
// Plots: the value under the pointer, and the arrow keys
//

function show(svg, index) {
    const points = [...svg.querySelectorAll(".point")];
    const at = Math.max(0, Math.min(points.length - 1, index));
    if (!points.length) return;
    for (const point of points) point.classList.remove("on");
    points[at].classList.add("on");
    const words = points[at].dataset.words;
    svg.closest("figure").querySelector("output").textContent = words;
    svg.setAttribute("aria-valuenow", at);
    svg.setAttribute("aria-valuemax", points.length - 1);
    svg.setAttribute("aria-valuetext", words);
}

function addKeys() {
    for (const svg of document.querySelectorAll(".plot svg:not([tabindex])")) {
        const last = svg.querySelectorAll(".point").length - 1;
        svg.setAttribute("tabindex", "0");
        svg.setAttribute("role", "slider");
        svg.setAttribute("aria-valuemin", "0");
        svg.setAttribute("aria-valuemax", last);
        svg.setAttribute("aria-valuenow", last);
        svg.setAttribute("aria-valuetext", svg.closest("figure").querySelector("output").textContent);
        svg.addEventListener("keydown", event => {
            const now = Number(svg.getAttribute("aria-valuenow"));
            const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1,
                ArrowUp: now + 1, Home: 0, End: Infinity }[event.key];
            if (to === undefined) return;
            event.preventDefault();
            show(svg, to);
        });
        svg.addEventListener("pointermove", event => {
            const point = event.target.closest?.(".point");
            if (point) show(svg, [...svg.querySelectorAll(".point")].indexOf(point));
        });
    }
}

document.documentElement.classList.add("script");
addSwitch();
addKeys();
goOn();
