#!/usr/bin/env python3
"""Writes lines.jsonl: 1,000 texts for comparing tokenizers, one JSON string a line.

    make_lines.py > lines.jsonl

The texts do not depend on the Python version: nothing here reads its Unicode tables but `normalised`, whose inputs are
old letters. Random choices come from a generator of our own with a fixed seed.
"""
import json
import sys
import unicodedata

COUNT = 1000


class Choices:
    """xorshift64*, so that the texts stay the same on every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state ^= self.state >> 12
        self.state ^= self.state << 25 & (1 << 64) - 1
        self.state ^= self.state >> 27
        return ((self.state * 0x2545F4914F6CDD1D & (1 << 64) - 1) >> 33) % bound

    def of(self, items):
        return items[self.below(len(items))]

    def some(self, items, low, high):
        return [self.of(items) for _ in range(low + self.below(high - low + 1))]


PICK = Choices(20261127)

# One phrase per script or orthography, then the first and last code point to draw words from.
SCRIPTS = {
    "Latin, Vietnamese": ("Đường phố Hà Nội buổi sáng, người đi chợ rất đông.", 0x1EA0, 0x1EF9),
    "Latin, Polish": ("Zażółć gęślą jaźń – wczoraj, dziś i jutro.", 0x100, 0x17F),
    "Latin, Turkish": ("İstanbul'da IŞIK ışığı, çğöşü; iI ıİ.", 0x180, 0x24F),
    "Latin, Icelandic": ("Þórður sagði: „Æ, ég á það ekki!“", 0xC0, 0xFF),
    "phonetic": ("[ˈkʰætʰ] /ðə ˈkwɪk bɹaʊn fɒks/", 0x250, 0x2AF),
    "Greek": ("Η γρήγορη αλεπού πηδάει· τι είναι αυτό;", 0x391, 0x3C9),
    "Greek, polytonic": ("ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν", 0x1F80, 0x1FAF),
    "Coptic": ("ϯⲙⲉⲧⲣⲉⲙⲛ̀ⲭⲏⲙⲓ", 0x2C80, 0x2CB1),
    "Cyrillic": ("Съешь же ещё этих мягких французских булок!", 0x410, 0x44F),
    "Cyrillic, Ukrainian": ("Ґанок, її п'ять їжаків – і «щось» є.", 0x450, 0x481),
    "Glagolitic": ("ⰀⰁⰂ ⰳⰴⰵ", 0x2C30, 0x2C5E),
    "Armenian": ("Բարեւ աշխարհ, ինչպե՞ս ես։", 0x561, 0x586),
    "Georgian": ("გამარჯობა, მსოფლიო! როგორ ხარ?", 0x10D0, 0x10F0),
    "Hebrew": ("שלום עולם, בְּרֵאשִׁית בָּרָא", 0x5D0, 0x5EA),
    "Arabic": ("مرحبا بالعالم، كَيْفَ حالُكَ؟ ١٢٣", 0x621, 0x64A),
    "Arabic, Persian": ("می‌خواهم بروم؛ سال ۱۴۰۳", 0x671, 0x6D3),
    "Syriac": ("ܫܠܡܐ ܥܠܡܐ", 0x710, 0x72C),
    "Thaana": ("އަސްސަލާމު ޢަލައިކުމް", 0x780, 0x7B0),
    "N'Ko": ("ߒߞߏ ߁߂߃", 0x7CA, 0x7E7),
    "Devanagari": ("नमस्ते दुनिया, क्या हाल है? १२३", 0x905, 0x94D),
    "Bengali": ("ওহে বিশ্ব, কেমন আছো? ৪৫৬", 0x995, 0x9B9),
    "Gurmukhi": ("ਸਤ ਸ੍ਰੀ ਅਕਾਲ ਦੁਨੀਆ", 0xA15, 0xA28),
    "Gujarati": ("નમસ્તે વિશ્વ, કેમ છો?", 0xA95, 0xAA8),
    "Odia": ("ନମସ୍କାର ବିଶ୍ୱ", 0xB15, 0xB28),
    "Tamil": ("வணக்கம் உலகம், எப்படி இருக்கிறீர்கள்?", 0xBAE, 0xBCD),
    "Telugu": ("నమస్కారం ప్రపంచం", 0xC15, 0xC28),
    "Kannada": ("ನಮಸ್ಕಾರ ಜಗತ್ತು", 0xC95, 0xCA8),
    "Malayalam": ("നമസ്കാരം ലോകമേ", 0xD15, 0xD39),
    "Sinhala": ("ආයුබෝවන් ලෝකය", 0xD9A, 0xDB1),
    "Thai": ("สวัสดีชาวโลก วันนี้อากาศดี ๑๒๓", 0xE01, 0xE2E),
    "Lao": ("ສະບາຍດີຊາວໂລກ", 0xE94, 0xE9F),
    "Tibetan": ("བཀྲ་ཤིས་བདེ་ལེགས། ༡༢༣", 0xF40, 0xF47),
    "Burmese": ("မင်္ဂလာပါ ကမ္ဘာလောက ၁၂၃", 0x1000, 0x1021),
    "Khmer": ("សួស្តី​ពិភពលោក ១២៣", 0x1780, 0x17A2),
    "Mongolian": ("ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ", 0x1820, 0x1842),
    "Ethiopic": ("ሰላም ልዑል፣ እንዴት ነህ። ፩፪፫", 0x1208, 0x1246),
    "Cherokee": ("ᎣᏏᏲ ᎡᎶᎯ", 0x13A0, 0x13F4),
    "Canadian syllabics": ("ᐊᐃ ᓄᓇᕐᔪᐊᖅ", 0x1401, 0x1676),
    "Runic": ("ᚠᚢᚦᚨᚱᚲ᛫ᚷᚹ ᛮᛯᛰ", 0x16A0, 0x16EA),
    "Ogham": ("᚛ᚐᚉᚈ ᚃᚓᚇ᚜", 0x1681, 0x169A),
    "Hangul": ("안녕하세요, 세계! 다람쥐 헌 쳇바퀴에 타고파.", 0xAC00, 0xD7A3),
    "Hangul jamo": ("한글 ㄱㄴㄷ", 0x1100, 0x1112),
    "Hiragana": ("いろはにほへと ちりぬるを。ゝゞ", 0x3041, 0x3096),
    "Katakana": ("コンニチハ、セカイ!ー・ヽ ｱｲｳｴｵﾞ", 0x30A1, 0x30FA),
    "Han": ("天地玄黃,宇宙洪荒。日月盈昃、辰宿列張。一二三〇", 0x4E00, 0x9FA5),
    "Han, extension B": ("𠀀𠀁 𪚥、𠮷野家", 0x20000, 0x2A6D6),
    "Bopomofo": ("ㄅㄆㄇㄈ ㄓㄨˋ", 0x3105, 0x312D),
    "Yi": ("ꆈꌠꁱꂷ", 0xA000, 0xA48C),
    "Javanese": ("ꦱꦸꦒꦼꦁ ꧑꧒", 0xA98F, 0xA9B2),
    "Tifinagh": ("ⴰⵣⵓⵍ ⴰⵎⴰⴹⴰⵍ", 0x2D30, 0x2D65),
    "Gothic": ("𐌲𐌿𐍄𐌹𐍃𐌺 𐍁𐍊", 0x10330, 0x10340),
    "Deseret": ("𐐆 𐐐𐐯𐐻", 0x10400, 0x1044F),
    "cuneiform": ("𒀭𒈗 𒐕𒐖", 0x12000, 0x12399),
    "hieroglyphs": ("𓂀𓃠 𓆣", 0x13000, 0x1342E),
    "Adlam": ("𞤀𞤣𞤤𞤢𞤥 𞥑𞥒", 0x1E900, 0x1E943),
    "Braille": ("⠓⠑⠇⠇⠕ ⠼⠁⠃", 0x2801, 0x28FF),
}

EMOJI = ["😀", "🙈", "❤️", "❤", "☺️", "👍", "👍🏽", "👩🏿‍🚀", "👨‍👩‍👧‍👦", "👩‍❤️‍💋‍👨", "🏳️‍🌈", "🏴‍☠️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🇩🇪", "🇯🇵🇧🇷", "🇺", "1️⃣", "#️⃣", "*️⃣",
         "🧑🏻‍🤝‍🧑🏿", "🫠", "🫨", "🪿", "🐈‍⬛", "👁️‍🗨️", "♟︎", "♟️", "⌚", "⏰", "™️", "©️", "㊗️", "🀄", "🃏", "🆒", "🔟", "💯",
         "‼️", "↔️", "🤷🏾‍♀️", "🧜🏽‍♂️", "🏻", "\u200d", "\ufe0f", "\u20e3"]

WORDS = ("the of and a to in is it you that he was for on are with as I his they be at one have this from or had by "
         "hot but some what there we can out other were all your when up use word how said an each she which do their "
         "time if will way about many then them would write like so these her long make thing see him two has look "
         "more day could go come did my sound no most number who over know water than call first people may down side "
         "naïve café Übergröße coöperate résumé 3rd A4 x86 IPv6 KV-cache don't it's we'll I'd they've y'all O'Neill "
         "DON'T IT'S ’tis isn’t l'été rock'n'roll").split()

CODE = [
    "#include <{w}>\nint main(void) {{ printf(\"%s\\n\", \"{w}\"); return {n}; }}",
    "template <class T, int N = {n}> constexpr auto {w} = [](auto&&... x) {{ return (x + ... + N); }};",
    "def {w}(x: int = {n}) -> str:\n    \"\"\"{w}.\"\"\"\n    return f\"{{x!r:>{n}}}\"\n",
    "    if {w} is not None and {w}[{n}:-1] != b'\\x00\\xff':\n\t\tpass\n",
    "fn {w}<'a>(s: &'a str) -> Option<&'a u8> {{ s.as_bytes().get({n}..)?.first() }}",
    "const {w} = async ({{ {w} = {n}, ...rest }}) => `${{await rest?.{w} ?? 'x'}}`;",
    "<div class=\"{w}\" id='a{n}'>&nbsp;&lt;{w}&gt;<!-- {w} --></div>\r\n",
    "SELECT `{w}`, COUNT(*) FROM {w}_{n} WHERE {w} LIKE '%''{w}%' GROUP BY 1 HAVING COUNT(*) >= {n}; -- {w}",
    "for f in $(ls *.{w} | grep -v '^{n}'); do echo \"$f\" >> /tmp/{w}.log 2>&1 || exit ${{?}}; done",
    "{w}:\n  - key_{n}: &anchor \"{w}\"\n    <<: *anchor\n",
    "{{\"{w}\": [{n}, -{n}.5e-{n}, true, null, \"\\u00e9\\n\"], \"\": {{}}}}",
    "package main\n\nfunc {w}(ch <-chan int) (n int, err error) {{\n\tfor range ch {{ n += {n} }}\n\treturn\n}}",
    "{w} :: (Num a, Eq a) => a -> [a] -> Bool\n{w} x = any (== x + {n}) . map (* 2)",
    "(define ({w} x #!optional y) `(,x ,@(list {n} 'y)) #\\a) ; {w}",
    "\\begin{{equation}} \\sum_{{i={n}}}^{{\\infty}} \\frac{{{w}_i}}{{x^{{{n}}}}} \\label{{eq:{w}}} \\end{{equation}}",
    "/^(?:[^\\s@]+)@{w}\\.(\\w{{2,{n}}})$/gi.test(s)",
    "mov rax, [rbp-0x{n}] ; {w}\n.L{n}:\n\tvpdpbusd zmm{n}, zmm1, zmm2{{k1}}{{z}}\n",
    "diff --git a/{w}.c b/{w}.c\n@@ -{n},7 +{n},9 @@ int {w}()\n-\told\n+\tnew\n",
    "{w} <- function(x, ...) x |> subset({w} == {n} & !is.na(y)) %>% head(n = {n}L)",
    "public static <T extends Comparable<? super T>> T {w}(List<T> l) throws E{n} {{ return l.get({n}); }}",
    "| {w} | {n} |\n|:---|---:|\n| **{w}** | `x` |\n\n```c\n{w}();\n```\n",
    "let {w} = #{{1 => <<\"bin\">>, {n} => fun(X) when X > {n} -> X end}}.",
    "Traceback (most recent call last):\n  File \"{w}.py\", line {n}, in <module>\nKeyError: '{w}'",
    "$x{{'{w}'}} =~ s/\\b{w}\\b/<$&>/eg if @_ > {n}; # {w}",
]

ADDRESSES = [
    "https://www.{w}.example/a/b?x={n}&y=%20%C3%A9#top", "http://user:pass@[2001:db8::{n}]:8080/", "ftp://192.168.{n}.1/",
    "{w}.{w}+tag@mail.example.co.uk", "C:\\Users\\{w}\\My Documents\\file{n}.txt", "/usr/lib/{w}/../lib{w}.so.{n}",
    "git@example.org:{w}/{w}-{n}.git", "urn:isbn:978-3-16-148410-{n}", "data:text/plain;base64,SGVsbG8sIHdvcmxkIQ==",
    "mailto:{w}@example.com?subject=Re%3A%20{w}", "550e8400-e29b-41d4-a716-4466554400{n}", "@{w} #{w}{n} $AAPL r/{w}",
    "https://例え.テスト/パス?q={w}", "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a{n}",
]

NUMBERS = ["{n}{n}{n}{n}{n}", "{n}.{n}", "-{n},{n}{n}{n}.{n}{n}", "1e-{n}", "0x{n}FF", "0b101{n}", "{n}/{n}/20{n}", "{n}:{n}:{n}Z",
           "+49 (0){n} {n}{n}-{n}", "€{n}.{n}", "£ {n}k", "{n}%", "№{n}", "{n}²³⁴", "½ ¾ {n}⅐", "Ⅷ ⅻ {n}", "①⑳{n}⒈", "٣٤{n}٥", "३४{n}५", "๓{n}๔",
           "𝟎𝟏{n}𝟡", "０１{n}９", "{n}\n\n{n}", "\n\n{n}", " {n}  {n}   {n}", "a{n}b{n}c", "{n}th 1st", "x{n}", "༳{n}", "𒐀{n}", "一{n}二", "Ⅿ{n}"]

SPACES = [" ", "  ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x85", "\u00a0", "\u1680", "\u2000", "\u2003", "\u2007",
          "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\x1c", "\x1d", "\x1e", "\x1f", "\u180e", "\u200b", "\ufeff"]

CONTROLS = ([chr(c) for c in range(0x20)] + [chr(c) for c in range(0x7F, 0xA0)] +
            [chr(c) for c in (0xAD, 0x61C, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x202A, 0x202B, 0x202C, 0x202D, 0x202E,
                              0x2060, 0x2061, 0x2063, 0x2066, 0x2067, 0x2068, 0x2069, 0x206A, 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB,
                              0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF, 0xFDD0, 0xE000, 0xF8FF, 0xE0001, 0xE007F, 0x1D173, 0xF0000,
                              0x10FFFD, 0x10FFFF, 0x1FFFE, 0x34F, 0x115F, 0x17B4, 0x180B, 0x3164, 0xFFA0, 0xFE00, 0xE0100)])

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>",
           "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>",
           "<jupyter_output>", "<jupyter_script>", "<empty_output>", "<s>", "</s>", "<unk>", "<pad>", "[INST]", "[/INST]",
           "<|im_start", "|im_end|>", "< |im_end|>", "<|IM_END|>", "<0x0A>", "<|end|>", "▁", "Ġ", "Ċ", "ĠĠ", "âĢĻ", "<start_of_turn>",
           "<|begin_of_text|>", "<|fim_prefix|>", "\u0120the", "##ing", "@@"]

# Letters with accents and compatibility forms, from the first versions of Unicode.
ACCENTS = ["é", "ü", "ñ", "ç", "Å", "ṩ", "ǖ", "ệ", "ờ", "ﬁ", "ﬀ", "ſ", "ẛ", "Ω", "K", "①", "㎏", "㌔", "ガ", "ば", "각", "한", "क़", "ড়", "שּׁ", "ﷺ", "ﾊﾟ",
           "Ａ", "ｚ", "…", "²", "ĳ", "ǆ", "ŉ", "ΐ", "ᾧ", "й", "ё", "ї", "Ç", "ô", "ẹ̄"]


def words(low, high):
    return " ".join(PICK.some(WORDS, low, high))


def number():
    return str(PICK.below(PICK.of([10, 100, 100, 1000])))


def filled(form):
    out = ""
    while form:
        before, brace, form = form.partition("{")
        before = before.replace("}}", "}")
        out += before
        if not brace:
            break
        if form.startswith("{"):
            out += "{"
            form = form[1:]
        else:
            name, _, form = form.partition("}")
            out += number() if name == "n" else PICK.of(WORDS).replace("'", "_").replace("’", "_")
    return out


def ascii_lines():
    for code in range(128):
        c = chr(code)
        yield f"{c}a{c} {c}{c}1{c} b{c}\n{c * 5} {PICK.of(WORDS)}{c}"


def script_lines():
    for phrase, first, last in SCRIPTS.values():
        letters = [chr(c) for c in range(first, last + 1)]
        drawn = "".join(PICK.some(letters, 3, 7)) + PICK.of(SPACES) + "".join(PICK.some(letters, 2, 6))
        yield phrase
        yield f"{words(1, 3)} {phrase[:12]}{PICK.of(WORDS)} ({drawn}){number()}"
        yield drawn + PICK.of(["!", ".", " ", "\n", "-", "'s", "_"]) + PICK.of(EMOJI) + "".join(PICK.some(letters, 1, 4))
    phrases = [phrase for phrase, _, _ in SCRIPTS.values()]
    while True:
        yield PICK.of(SPACES[:8]).join(PICK.of(phrases).split()[0] for _ in range(3 + PICK.below(4)))


def emoji_lines():
    for emoji in EMOJI:
        yield f"{PICK.of(WORDS)} {emoji}{emoji} {emoji}{PICK.of(WORDS)}{emoji}{number()}"
    while True:
        yield "".join(PICK.some(EMOJI + [" ", ", ", "!"], 4, 10))


def from_forms(forms, around):
    def lines():
        at = 0
        while True:
            text = filled(forms[at % len(forms)])
            yield text if at < len(forms) or not around else f"{words(0, 2)} {text}{PICK.of([' ', '', chr(10), '.'])}{words(0, 2)}"
            at += 1
    return lines


def space_lines():
    for space in SPACES:
        yield f"{PICK.of(WORDS)}{space}{PICK.of(WORDS)}{space * 2}{number()}{space * 3}!{space}"
    for length in (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 64, 100, 257):
        yield f"{PICK.of(SPACES[:12])}{' ' * length}x{chr(10) * length}y{chr(9) * length}"
    while True:
        yield "".join(x for pair in zip(PICK.some(WORDS, 3, 5), PICK.some(SPACES, 3, 5)) for x in pair) + PICK.of(SPACES)


def control_lines():
    for at in range(0, len(CONTROLS), 2):
        pair = CONTROLS[at:at + 2]
        yield f"{PICK.of(WORDS)}{pair[0]}{PICK.of(WORDS)} {''.join(pair)}{pair[-1]}7{pair[0]}"
    while True:
        yield "".join(PICK.some(CONTROLS + WORDS, 4, 9))


def normalised(text):
    return unicodedata.normalize(PICK.of(["NFC", "NFD", "NFKC", "NFKD"]), text)


def normal_lines():
    for accent in ACCENTS:
        yield " ".join(f"{form}:x{unicodedata.normalize(form, accent)}y" for form in ("NFC", "NFD", "NFKC", "NFKD"))
    while True:
        yield "".join(normalised(PICK.of(ACCENTS + ["résumé ", "Ångström ", " Việt "])) for _ in range(8))


def special_lines():
    for at, special in enumerate(SPECIAL):
        yield f"{words(0, 2)}{special}{PICK.of(['', ' ', chr(10)])}{SPECIAL[(at * 7 + 3) % len(SPECIAL)]} {PICK.of(WORDS)}"
    while True:
        yield "".join(PICK.some(SPECIAL + [" ", "\n", "user\n", "system"], 3, 6))


def prose_lines():
    for text in ("", " ", "a", "\n", "I'm I'M I’m 'S 's ''s 'll'LL 've're'd't'm", "word " * 60, "a" * 300, "!?" * 90, "=" * 129,
                 "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"):
        yield text
    while True:
        yield words(6, 14).capitalize() + PICK.of([".", "!", "?", "...", "…", " —", ";", '."', ".)", "?!"])


def point_lines():
    """Code points of all planes, surrogates left out."""
    while True:
        bound = PICK.of([0x800, 0x3000, 0xD800, 0x20000, 0x110000])
        points = [PICK.below(bound) for _ in range(12)]
        yield "".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)


GROUPS = [(ascii_lines, 128), (script_lines, 200), (emoji_lines, 80), (from_forms(CODE, False), 150), (from_forms(ADDRESSES, True), 60),
          (from_forms(NUMBERS, True), 82), (space_lines, 80), (control_lines, 80), (normal_lines, 60), (special_lines, 50),
          (prose_lines, 20), (point_lines, 10)]


def all_lines():
    for lines, count in GROUPS:
        source = lines()
        for _ in range(count):
            yield next(source)


def main():
    lines = list(all_lines())
    assert len(lines) == COUNT, len(lines)
    sys.stdout.write("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
