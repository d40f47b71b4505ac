"""Every link of the built site that stays inside it leads to a file and a heading that exist: `python docs/links.py _docs`."""
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    "The anchors of a page, and what it links to or shows."
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {attrs[k] for k in ("id", "name") if attrs.get(k)}
        self.links += [attrs[k] for k in ("href", "src") if attrs.get(k)]


def dead_links(folder):
    "Each link that leads nowhere, as `page: link`."
    pages = {path: Page(path.read_text(encoding="utf8")) for path in folder.rglob("*.html") if "_static" not in path.parts}
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue  # another host, or a picture inside the page
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            anchored = not url.fragment or target not in pages or unquote(url.fragment) in pages[target].anchors
            if not target.is_file() or not anchored:
                yield f"{path.relative_to(folder)}: {link}"


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    dead = sorted(set(dead_links(folder)))
    sys.exit("\n".join(["dead links:", *dead]) if dead else 0)
