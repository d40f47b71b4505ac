"""Does an index notice that nothing shows a sentence, and does `without` keep things away?

`--data photos --things absent.tsv`: things and the words that mention them; without the file, the nouns of drawn scenes. For every thing, all images whose
captions mention it are taken out, and the probability of `Presence`, fitted to what remains, is asked for sentences that mention it: once without these
images, once without as many others, never with the sentence's own image; and for short questions, "a" and each of these words. Then, for pairs of things: the share of the first ten answers that show an
unwanted thing, with `without` and without it, and the recall of images that show the wanted thing alone.
"""
import argparse, csv, re, sys, warnings
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from teran_nb.core.show import markdown_table
from teran_nb.scenes.grammar import NAMES, plural
from teran_nb.model import presence as presence_page
from teran_nb.model.network import untrained_model
from teran_nb.search.index import Index
from teran_nb.model.presence import Presence, _word_cosines, best_mean, fit_presence, content_word_rows, summed_words
from teran_nb.training.datasets import load_data
from teran_nb.training.runs import load_model

def words_of(text): return set(re.findall(r"\w+", text.casefold()))

def auroc(present, absent):
    "Share of pairs in which the present one is higher."
    return float((present[:,None] > absent).double().mean() + (present[:,None] == absent).double().mean()/2)

def calibration_error(p, y, bins=10):
    parts = np.array_split(np.argsort(p), bins)
    return sum(abs(p[part].mean() - y[part].mean())*len(part) for part in parts)/len(p)

class Asked:
    "Sentences asked of images of which some are left out."
    def __init__(self, model, images, captions):
        self.captions = captions = model.as_queries(captions)
        counts = [summed_words([captions[[k]]], model.pooling) or 1 for k in range(len(captions))]
        self.sim = model.similarity(images, captions).cpu().float()/torch.tensor(counts)
        self.cosines = _word_cosines(images, captions)
        self.columns = np.cumsum([0,*[len(content_word_rows(captions[k])) for k in range(len(captions))]])
    def numbers(self, k, kept, presences):
        "Best score, mean of the best scores, and the probability by each presence."
        scores = self.sim[kept,k]
        best = best_mean(scores).item()
        levels = best_mean(self.cosines[kept][:,self.columns[k]:self.columns[k+1]])
        return scores.max().item(),best,*[each.probability_of_sentence(self.captions[k], best, levels)[0] for each in presences]

def summary(name, values, brought):
    here,away = values[values[:,0] == 1],values[values[:,0] == 0]
    raw,mean,p,q = (auroc(here[:,c], away[:,c]) for c in (1,2,3,4))
    error,own_error = (calibration_error(values[:,c].numpy(), values[:,0].numpy()) for c in (3,4))
    def below(c): return f"below 0.5 {100*(here[:,c] < .5).float().mean():.0f} % of those there, {100*(away[:,c] < .5).float().mean():.0f} % of those gone"
    print(f"{name}: best score {raw:.3f}, mean of the best {mean:.3f}, probability {p:.3f}, calibration error {error:.3f}, {below(3)}, "
          f"{len(here):,} sentences\n", flush=True)
    if brought: print(f"by the presence that the model brings: probability {q:.3f}, calibration error {own_error:.3f}, {below(4)}\n", flush=True)

def absent(model, data, things, sentences):
    images = model.encode_images(data)
    texts = list(dict.fromkeys(data.captions.texts))
    short = [(thing,f"a {word}") for thing,words in things.items() for word in sorted(words)]
    asked_short = Asked(model, images, model.encode_captions([text for _,text in short]))
    encoded = model.encode_captions(texts)
    row_of = {text: row for row,text in enumerate(texts)}
    model.encode_captions = lambda texts: encoded[[row_of[text] for text in texts]] # once for all fits
    owner = torch.as_tensor(np.asarray(data.captions.image_of)).long()
    said = [words_of(text) for text in data.captions.texts]
    g = torch.Generator().manual_seed(0)
    asked,without = {},{}
    for thing,words in things.items():
        mentions = torch.tensor([bool(words & s) for s in said])
        without[thing] = torch.zeros(len(data)).bool()
        without[thing][owner[mentions]] = True
        rows = mentions.nonzero().ravel()
        asked[thing] = rows[torch.randperm(len(rows), generator=g)[:sentences]].tolist()
    numbers = {j: k for k,j in enumerate(dict.fromkeys(j for rows in asked.values() for j in rows))}
    long = Asked(model, images, model.encode_captions([data.captions.texts[j] for j in numbers]))
    brought = Presence.from_model(model) # of other images
    rows,everything,all_short = [],[],[]
    for thing,gone in without.items():
        remain = (~gone).nonzero().ravel().tolist()
        if not asked[thing] or len(remain) < 50: continue
        presence = fit_presence(model, images[remain], data.captions)
        if presence is None: continue
        presences = presence,brought or presence
        values = []
        def others(): # as many images as show the thing
            out = torch.zeros(len(data)).bool()
            out[torch.randperm(len(data), generator=g)[:int(gone.sum())]] = True
            return out
        for j in asked[thing]:
            for label,left in enumerate((gone,others())):
                kept = ~left
                kept[owner[j]] = False
                values.append((label,*long.numbers(numbers[j], kept, presences)))
        for k in (k for k,(of,_) in enumerate(short) if of == thing):
            all_short += [(label,*asked_short.numbers(k, ~left, presences)) for label,left in enumerate((gone,others()))]
        values = torch.tensor(values)
        everything.append(values)
        here,away = values[values[:,0] == 1],values[values[:,0] == 0]
        rows.append([thing, int(gone.sum()), *[f"{auroc(here[:,c], away[:,c]):.2f}" for c in (1,3)],
                     *[f"{x[:,3].mean():.2f}" for x in (here,away)]])
    del model.encode_captions
    print(markdown_table(["thing","images","AUROC, best score","AUROC, probability","mean probability, there","gone"], rows) + "\n")
    summary("captions", torch.cat(everything), brought)
    summary('short, as "a dog"', torch.tensor(all_short), brought)

def without(model, data, nouns, pairs):
    index = Index(model)
    index.add(data)
    held = {}
    for text,i in zip(data.captions.texts, data.captions.image_of.tolist()): held.setdefault(data.image_ids[i], set()).update(words_of(text))
    def shows(noun, name): return bool(nouns[noun] & held[name])
    g = np.random.default_rng(0)
    found = []
    for _ in range(pairs):
        wanted,unwanted = g.choice(list(nouns), 2, replace=False)
        right = sum(shows(wanted, name) and not shows(unwanted, name) for name in held)
        if not right: continue
        line = []
        asked = f"a {wanted}"
        for question,other in ((asked,""), (asked,f"a {unwanted}"), ({asked: 1, f"a {unwanted}": -1},"")):
            ids = index.search(question, 10, without=other).ids
            alone = sum(shows(wanted, name) and not shows(unwanted, name) for name in ids)
            line.append([np.mean([shows(unwanted, name) for name in ids]), alone/min(10, right)])
        found.append(line)
    searches = "a WANTED","a WANTED, without='a UNWANTED'","{'a WANTED': 1, 'a UNWANTED': -1}"
    rows = [[search,*map("{:.1f}".format, shares)] for search,shares in zip(searches, 100*np.mean(found, 0))]
    print(markdown_table(["search","first ten that show the unwanted thing %","recall@10 of the wanted thing alone %"], rows) + "\n")

def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--data", default="scenes", help="as in `load_data`; its test split")
    p.add_argument("--split", default="test")
    p.add_argument("--model", default="runs/scenes-teran-mrsw")
    p.add_argument("--things", default="", help="a table of things and words, as in Flickr8k's absent.tsv")
    p.add_argument("--images", type=int, default=1000, help="at most")
    p.add_argument("--sentences", type=int, default=60, help="of each thing")
    p.add_argument("--quick", action="store_true", help="a hundred scenes and an untrained model: does it run?")
    args = p.parse_args()
    warnings.filterwarnings("ignore", "(?s).*captions have no word")
    if args.quick:
        data,args.sentences = load_data("scenes:quick").val,3
        model = untrained_model(data, data.captions.texts)
        presence_page._FEWEST = 1 # nearly all words of an untrained model are related, so few things can be taken out
    else:
        model = load_model(args.model)
        data = load_data(args.data).split(args.split)
    data = data[:args.images]
    nouns = {names[0]: {form for name in names for form in (name,plural(name))} for names in NAMES.values()}
    things = nouns
    if args.things: things = {row["thing"]: set(row["words"].split()) for row in csv.DictReader(open(args.things), delimiter="\t")}
    absent(model, data, things, args.sentences)
    without(model, data, things, 5 if args.quick else 200)

if __name__ == "__main__": main()
