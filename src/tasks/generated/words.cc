#include "tasks/generated/words.h"

namespace kvasir::generated {
namespace {

constexpr std::string_view kAdjectives[] = {
    "amber",    "silver",   "crooked", "hidden",   "golden",    "ancient",  "silent",   "scarlet",  "broken",
    "frozen",   "hollow",   "wooden",  "velvet",   "iron",      "marble",   "copper",   "ivory",    "dusty",
    "crystal",  "painted",  "narrow",  "distant",  "forgotten", "northern", "southern", "eastern",  "western",
    "little",   "great",    "blue",    "green",    "white",     "black",    "agile",    "bitter",   "blunt",
    "bold",     "brave",    "brief",   "bright",   "brisk",     "calm",     "careful",  "cheerful", "chilly",
    "civil",    "clever",   "cloudy",  "coarse",   "common",    "compact",  "cosy",     "crisp",    "cruel",
    "curious",  "damp",     "daring",  "dark",     "deep",      "dense",    "dim",      "distinct", "drowsy",
    "dull",     "eager",    "early",   "earnest",  "elder",     "empty",    "endless",  "even",     "exact",
    "faint",    "famous",   "fancy",   "fertile",  "fierce",    "final",    "firm",     "fluent",   "foggy",
    "formal",   "frail",    "fresh",   "friendly", "frugal",    "gallant",  "gentle",   "giant",    "gloomy",
    "graceful", "grand",    "grave",   "grim",     "handsome",  "hardy",    "harsh",    "hasty",    "heavy",
    "humble",   "icy",      "idle",    "immense",  "inner",     "jolly",    "just",     "keen",     "kindly",
    "lame",     "late",     "lavish",  "lazy",     "lean",      "level",    "light",    "limp",     "lively",
    "local",    "lofty",    "lonely",  "loose",    "loud",      "lovely",   "lucky",    "lunar",    "mellow",
    "merry",    "mighty",   "mild",    "minor",    "misty",     "modest",   "molten",   "mossy",    "muddy",
    "muted",    "naked",    "native",  "neat",     "nimble",    "noble",    "noisy",    "novel",    "obscure",
    "odd",      "open",     "oval",    "pale",     "patient",   "peaceful", "plain",    "pleasant", "polite",
    "precious", "pretty",   "prompt",  "proud",    "prudent",   "pure",     "quaint",   "quick",    "quiet",
    "rapid",    "rare",     "ready",   "regal",    "remote",    "restless", "rigid",    "ripe",     "robust",
    "rocky",    "rosy",     "rough",   "round",    "royal",     "rural",    "rusty",    "sandy",    "scarce",
    "secret",   "serene",   "severe",  "shallow",  "sharp",     "shiny",    "shy",      "silken",   "simple",
    "sincere",  "sleek",    "slender", "slim",     "slow",      "sly",      "smooth",   "snug",     "sober",
    "soft",     "solar",    "solemn",  "solid",    "sour",      "spare",    "sparse",   "speedy",   "spicy",
    "spiral",   "square",   "stately", "steady",   "steep",     "stern",    "sticky",   "stiff",    "stout",
    "strange",  "strict",   "strong",  "sturdy",   "subtle",    "sudden",   "sunny",    "superb",   "swift",
    "tame",     "tender",   "tepid",   "thick",    "thin",      "thirsty",  "tidy",     "timid",    "tiny",
    "tough",    "tranquil", "vacant",  "vague",    "valiant",   "vast",     "vivid",    "warm",     "wary",
    "watchful", "wealthy",  "weary",   "wet",      "whole",     "wicked",   "wide",     "wild",     "windy",
    "wise",     "witty",    "worthy",  "young",    "zealous"};

constexpr std::string_view kNouns[] = {
    "lantern", "key",     "tower",    "garden",  "river",    "castle",   "mirror",     "bridge",   "harbour",
    "compass", "letter",  "clock",    "violin",  "temple",   "window",   "cellar",     "orchard",  "island",
    "chapel",  "forge",   "carriage", "library", "fountain", "anchor",   "lighthouse", "bell",     "crown",
    "map",     "door",    "statue",   "well",    "mill",     "acorn",    "actor",      "alley",    "almond",
    "altar",   "anvil",   "apple",    "apron",   "archer",   "arena",    "arrow",      "artist",   "atlas",
    "attic",   "autumn",  "badge",    "badger",  "baker",    "ballad",   "bamboo",     "banjo",    "banker",
    "banner",  "barber",  "barley",   "barn",    "baron",    "barrel",   "basin",      "basket",   "beach",
    "beacon",  "bead",    "beaver",   "beetle",  "bench",    "berry",    "bishop",     "blanket",  "blossom",
    "boat",    "bonnet",  "book",     "boot",    "bottle",   "boulder",  "bowl",       "branch",   "brass",
    "bread",   "breeze",  "brick",    "broom",   "brother",  "brush",    "bucket",     "buckle",   "bugle",
    "butter",  "button",  "cabbage",  "cabin",   "cable",    "cactus",   "camel",      "camera",   "canal",
    "candle",  "canoe",   "canvas",   "cape",    "captain",  "caravan",  "carpet",     "cart",     "cavern",
    "cedar",   "chain",   "chair",    "chalk",   "channel",  "chariot",  "cheese",     "cherry",   "chess",
    "chest",   "chimney", "cider",    "circus",  "citadel",  "clay",     "clerk",      "cliff",    "cloak",
    "cloth",   "clover",  "coach",    "coast",   "cobbler",  "coffee",   "coin",       "collar",   "colony",
    "column",  "comet",   "copse",    "coral",   "cord",     "cork",     "corner",     "cottage",  "cotton",
    "couch",   "council", "cousin",   "crab",    "cradle",   "crane",    "crate",      "creek",    "cricket",
    "crow",    "cup",     "cupboard", "curtain", "cushion",  "dagger",   "dairy",      "daisy",    "dam",
    "dancer",  "dawn",    "deer",     "desert",  "desk",     "diary",    "dock",       "doctor",   "dolphin",
    "donkey",  "dove",    "dragon",   "drawer",  "drum",     "duchess",  "duke",       "eagle",    "earl",
    "easel",   "echo",    "elbow",    "elm",     "ember",    "emperor",  "envoy",      "estuary",  "fable",
    "falcon",  "farm",    "farmer",   "feather", "fence",    "fern",     "ferry",      "fiddle",   "field",
    "fig",     "finch",   "fisher",   "flag",    "flask",    "flax",     "fleet",      "flint",    "flour",
    "flower",  "flute",   "forest",   "fort",    "fossil",   "fox",      "frame",      "frost",    "gallery",
    "galley",  "gander",  "garlic",   "garment", "gate",     "gazelle",  "ginger",     "glacier",  "glade",
    "glass",   "globe",   "glove",    "goat",    "goblet",   "goose",    "grain",      "granary",  "grape",
    "gravel",  "grove",   "guard",    "guest",   "guitar",   "gull",     "gust",       "hall",     "hammer",
    "hamlet",  "hammock", "harp",     "harvest", "hat",      "hawk",     "hazel",      "hearth",   "hedge",
    "heather", "helmet",  "herald",   "herb",    "hermit",   "heron",    "hill",       "hinge",    "honey",
    "hood",    "horizon", "horn",     "horse",   "hotel",    "hound",    "hunter",     "inn",      "ink",
    "jacket",  "jar",     "jasmine",  "jewel",   "jockey",   "journal",  "judge",      "juggler",  "jungle",
    "juniper", "kennel",  "kettle",   "kitchen", "kite",     "knight",   "ladder",     "lagoon",   "lake",
    "lamb",    "lamp",    "lance",    "lane",    "lark",     "lawn",     "leaf",       "ledger",   "lemon",
    "leopard", "lily",    "linen",    "lion",    "lizard",   "lobster",  "locket",     "lodge",    "loom",
    "lotus",   "lute",    "magnet",   "maple",   "market",   "marsh",    "mask",       "mason",    "meadow",
    "medal",   "melon",   "merchant", "meteor",  "miller",   "miner",    "mint",       "mitten",   "moat",
    "monk",    "moon",    "moss",     "moth",    "mountain", "mule",     "museum",     "nectar",   "needle",
    "nephew",  "nest",    "nettle",   "night",   "nurse",    "nutmeg",   "oak",        "oar",      "oasis",
    "oat",     "ocean",   "office",   "olive",   "onion",    "opal",     "opera",      "orchid",   "organ",
    "otter",   "oven",    "owl",      "ox",      "oyster",   "paddle",   "palace",     "palm",     "panther",
    "paper",   "parcel",  "parrot",   "pasture", "path",     "pavilion", "peach",      "pear",     "pearl",
    "pebble",  "pepper",  "piano",    "pier",    "pigeon",   "pillar",   "pillow",     "pilot",    "pine",
    "pipe",    "pirate",  "planet",   "plank",   "plaza",    "plough",   "plum",       "pocket",   "poet",
    "pond",    "pony",    "poplar",   "poppy",   "porch",    "port",     "potter",     "powder",   "prairie",
    "prince",  "prism",   "pulley",   "pumpkin", "puppet",   "quarry",   "quartz",     "queen",    "quill",
    "quilt",   "rabbit",  "radish",   "raft",    "rail",     "rain",     "raven",      "reed",     "reef",
    "ribbon",  "rice",    "rider",    "ring",    "road",     "robe",     "robin",      "rocket",   "rope",
    "rose",    "rudder",  "ruby",     "saddle",  "sage",     "sail",     "sailor",     "salmon",   "salt",
    "sand",    "sandal",  "satchel",  "saucer",  "scarf",    "scholar",  "school",     "scribe",   "scroll",
    "seal",    "shadow",  "shawl",    "sheep",   "shelf",    "shell",    "shepherd",   "shield",   "ship",
    "shore",   "shovel",  "shrine",   "sister",  "sketch",   "slate",    "sled",       "smith",    "smoke",
    "snail",   "snow",    "soldier",  "song",    "spade",    "spark",    "sparrow",    "spear",    "spice",
    "spider",  "spindle", "spoon",    "spring",  "squire",   "stable",   "stair",      "star",     "station",
    "stone",   "stool",   "stork",    "storm",   "stove",    "straw",    "stream",     "street",   "summer",
    "sunset",  "swallow", "swamp",    "swan",    "sword",    "table",    "tailor",     "tapestry", "tavern",
    "teacher", "tent",    "thicket",  "thimble", "thistle",  "thorn",    "thread",     "throne",   "thrush",
    "thunder", "tiger",   "timber",   "torch",   "tortoise", "town",     "trail",      "trumpet",  "trunk",
    "tulip",   "tunnel",  "turnip",   "turtle",  "twig",     "umbrella", "uncle",      "valley",   "vase",
    "vault",   "veil",    "vessel",   "vicar",   "village",  "vine",     "vineyard",   "volcano",  "wagon",
    "walnut",  "walrus",  "warden",   "water",   "weaver",   "wharf",    "wheat",      "wheel",    "whistle",
    "willow",  "wind",    "wing",     "winter",  "wolf",     "wool",     "wren",       "yacht",    "yard",
    "zebra"};

}  // namespace

std::span<const std::string_view> adjectives() {
  return kAdjectives;
}

std::span<const std::string_view> nouns() {
  return kNouns;
}

}  // namespace kvasir::generated
