// Builds the playground into the Python package, so that users of the package need no Node.
// Nothing is inlined into the page: the policy it is served under allows neither inline script nor inline style.

import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";
import { stamp } from "./stamp.ts";

const root = fileURLToPath(new URL(".", import.meta.url));
const outDir = fileURLToPath(new URL("../quicksilver/server/static", import.meta.url));
const server = process.env["QUICKSILVER_URL"] ?? "http://127.0.0.1:8480";

export default defineConfig({
  root,
  base: "/",
  plugins: [stamp(root, outDir)],
  build: {
    outDir,
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  test: { environment: "happy-dom", include: ["test/**/*.test.{ts,tsx}"] },
  server: { proxy: { "/v1": server, "/playground": server, "/feedback": server, "/ready": server } },
});
