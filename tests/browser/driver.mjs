// Drives Chromium for tests: reads one command of JSON a line, answers with one line.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";

const [cache, executablePath, profile] = process.argv.slice(2);
const require = createRequire(`${cache}/driver.js`);
const { chromium } = require("playwright-core");
const axe = readFileSync(`${cache}/node_modules/axe-core/axe.min.js`, "utf8");

const SILENT = [
  "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const context = await chromium.launchPersistentContext(profile, {
  executablePath, headless: true, chromiumSandbox: false, args: SILENT,
});
context.setDefaultTimeout(60000);
const page = context.pages()[0] ?? (await context.newPage());
let problems = [];
let requests = [];
page.on("console", (message) => {
  if (message.type() === "error" || message.type() === "warning") problems.push(message.text());
});
page.on("pageerror", (error) => problems.push(String(error)));
page.on("dialog", (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
context.on("request", (request) => requests.push(request.url()));

const NAVIGATION = /context was destroyed|navigation/i;

// A page that is left in the middle of a question is asked again when the next one is there.
async function onceLoaded(ask) {
  for (let times = 1; ; times++) {
    try {
      return await ask();
    } catch (error) {
      if (times === 5 || !NAVIGATION.test(String(error))) throw error;
      await page.waitForLoadState("load");
    }
  }
}

const COMMANDS = {
  open: async ({ url }) => (await page.goto(url, { waitUntil: "load" }))?.status(),
  // A function that is called in each page before the page's own scripts.
  prepare: ({ script }) => page.addInitScript(`(${script})()`),
  content: async ({ html }) => {
    await page.goto("about:blank");
    await page.setContent(html);
  },
  look: async ({ width, height, scheme }) => {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: scheme });
  },
  // A function of the page, with `given`.  The page's policy does not hold here.
  evaluate: ({ script, given }) =>
    onceLoaded(() => page.evaluate(`(${script})(${JSON.stringify(given ?? null)})`)),
  // Asked from outside: inside the page its policy forbids to evaluate text.
  wait: async ({ script, given }) => {
    // A page without its styles has its text already, but not its colours and sizes.
    const call = `document.readyState === "complete" && (${script})(${JSON.stringify(given ?? null)})`;
    const until = Date.now() + 60000;
    for (;;) {
      try {
        if (await page.evaluate(call)) return;
      } catch (error) {
        if (!NAVIGATION.test(String(error))) throw error;
      }
      if (Date.now() > until) {
        const text = await page.evaluate("document.body.innerText.slice(0, 2000)");
        throw new Error(`not within a minute: ${call}\n${page.url()}\n${text}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  },
  click: ({ selector }) => page.click(selector),
  fill: ({ selector, text }) => page.fill(selector, text),
  press: ({ key }) => page.keyboard.press(key),
  cookies: () => context.cookies(),
  forget: () => context.clearCookies(),
  remember: ({ cookies }) => context.addCookies(cookies),
  address: () => page.url(),
  back: async () => (await page.goBack())?.status(),
  axe: async () => {
    const found = await onceLoaded(async () => {
      await page.waitForLoadState("load");
      await page.evaluate(axe);
      return page.evaluate("axe.run(document, { resultTypes: ['violations'] })");
    });
    return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" | ")}`);
  },
  picture: ({ file, whole = true }) => page.screenshot({ path: file, fullPage: whole }),
  take: () => {
    const taken = { problems, requests };
    [problems, requests] = [[], []];
    return taken;
  },
};

console.log(JSON.stringify({ value: "ready" }));
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  try {
    console.log(JSON.stringify({ value: (await COMMANDS[command.do](command)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
await context.close();
