// Pictures for the documentation, taken by the tests themselves so that they cannot go stale unseen.
// Written only when asked for: PICTURES=1 npm run e2e.

const FOLDER = new URL("../../docs/images/", import.meta.url).pathname;

export async function picture(page, name) {
  if (process.env.PICTURES) await page.screenshot({ path: `${FOLDER}${name}.png`, scale: "css" });
}
