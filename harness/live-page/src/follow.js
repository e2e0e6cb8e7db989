// Asks for this page again every two seconds, and puts what has changed in place.
(() => {
  let tag = "";
  async function follow() {
    try {
      const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag") || "";
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const places = [...document.querySelectorAll(".scroll")].map((part) => [part.ariaLabel, part.scrollLeft, part.scrollTop]);
        const open = [...document.querySelectorAll("details[id][open]")].map((part) => part.id);
        document.querySelector("main").replaceWith(page.querySelector("main"));
        for (const [label, left, top] of places) {
          const part = [...document.querySelectorAll(".scroll")].find((part) => part.ariaLabel === label);
          if (part) part.scrollTo(left, top);
        }
        for (const part of document.querySelectorAll("details[id]")) part.open = open.includes(part.id);
      } else if (answer.status !== 304) {
        throw answer.status;
      }
      document.body.classList.remove("lost");
    } catch {
      document.body.classList.add("lost");
    }
    setTimeout(follow, 2000);
  }
  setTimeout(follow, 2000);
})();
