// Finds a Chromium for the browser tests: $CHROMIUM, else an installed one, else the binary that the npm package
// @sparticuz/chromium carries, which needs no root. `node e2e/chromium.mjs` prints its path, or says on standard error
// what is missing and exits with 1.

import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const INSTALLED = ["chromium", "chromium-browser", "google-chrome"];
// Not the shared temporary folder: a file of that name there may be another user's.
const UNPACKED = fileURLToPath(new URL("../node_modules/.cache/chromium", import.meta.url));

/** Launch options for a Chromium that starts on this machine: its path, and its environment where it needs one. */
export async function findChromium() {
  const path = process.env.CHROMIUM ?? INSTALLED.map(which).find(Boolean);
  return path ? { executablePath: path } : await unpack();
}

function which(name) {
  try {
    return execFileSync("sh", ["-c", 'command -v "$0"', name], { encoding: "utf8" }).trim();
  } catch {
    return undefined;
  }
}

async function unpack() {
  if (process.platform !== "linux" || process.arch !== "x64") {
    throw new Error("the packaged Chromium is for Linux on x86_64; install a Chromium and name it in CHROMIUM");
  }
  const executablePath = await unpackInto(UNPACKED);
  const env = { ...process.env, LD_LIBRARY_PATH: join(UNPACKED, "al2023/lib") };
  env.FONTCONFIG_FILE ??= writeFontsConf(UNPACKED);
  const missing = missingLibraries(executablePath, env);
  if (missing.length > 0) {
    throw new Error(`the packaged Chromium needs shared libraries: ${missing.join(", ")}; or install chromium`);
  }
  return { executablePath, env };
}

/** The package unpacks into the temporary folder, and its copies of NSS and NSPR only where it sees this runtime. */
async function unpackInto(folder) {
  const before = { ...process.env };
  mkdirSync(folder, { recursive: true });
  Object.assign(process.env, { TMPDIR: folder, AWS_LAMBDA_JS_RUNTIME: "nodejs20.x" });
  try {
    const { default: packaged } = await import("@sparticuz/chromium");
    return await packaged.executablePath();
  } catch (error) {
    rmSync(folder, { recursive: true, force: true });
    throw error;
  } finally {
    for (const name of Object.keys(process.env)) delete process.env[name];
    Object.assign(process.env, before);
  }
}

/** The configuration in the package names only folders of its own platform. Without any font, Chromium exits. */
function writeFontsConf(folder) {
  const path = join(folder, "fonts.conf");
  const folders = ["/usr/share/fonts", "/usr/local/share/fonts", join(folder, "fonts")];
  const dirs = folders.map((dir) => `<dir>${dir}</dir>`).join("");
  writeFileSync(path, `<?xml version="1.0"?><fontconfig>${dirs}<cachedir>${join(folder, "cache")}</cachedir></fontconfig>`);
  return path;
}

function missingLibraries(path, env) {
  const listed = execFileSync("ldd", [path], { encoding: "utf8", env });
  return [...listed.matchAll(/^\s*(\S+) => not found$/gmu)].map((match) => match[1]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    console.log((await findChromium()).executablePath);
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}
