import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  base: "/explorer/",
  plugins: [svelte()],
  build: {
    outDir: process.env.SHOAL_EXPLORER_OUT,
    emptyOutDir: true,
    target: "es2022",
    // One script, one style sheet, one font: a page is here after four requests. The content
    // policy of the page forbids anything inline.
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
  },
});
