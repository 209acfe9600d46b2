// Mistakes that people make on the command line, and the one line that each gets: misspelt, contradictory, impossible.
#include <iterator>
#include <span>
#include <sstream>

#include "cli/errors.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

// Arguments and message as they are typed and shown; in both, M stands for the model, T for a text, D for a folder, V
// for a file with a tokenizer alone, and B for a file that is not UTF-8, each in braces. The message of a wrong command
// line ends with where help is: "(see 'kvasir run --help')".
struct Mistake {
  const char* arguments;
  const char* message;
};

constexpr Mistake kMisspelt[] = {
    {"rnu {M}", "there is no command 'rnu'; did you mean 'run'? (see 'kvasir --help')"},
    {"Run {M}", "there is no command 'Run'; did you mean 'run'? (see 'kvasir --help')"},
    {"tokenise {M} -p x", "there is no command 'tokenise'; did you mean 'tokenize'? (see 'kvasir --help')"},
    {"polices", "there is no command 'polices'; did you mean 'policies'? (see 'kvasir --help')"},
    {"chat {M}", "there is no command 'chat' (see 'kvasir --help')"},
    {"eval pll -m {M} -f {T}", "there is no command 'pll'; did you mean 'ppl'? (see 'kvasir eval --help')"},
    {"run -m {M} --promt x",
     "the argument '--promt' is not expected; did you mean '--prompt'? (see 'kvasir run --help')"},
    {"run --modle {M} -p x",
     "the argument '--modle' is not expected; did you mean '--model'? (see 'kvasir run --help')"},
    {"run --mdoel={M} -p x",
     "the argument '--mdoel={M}' is not expected; did you mean '--model'? (see 'kvasir run --help')"},
    {"run {M} -p x --temprature 0.5",
     "the argument '--temprature' is not expected; did you mean '--temp'? (see 'kvasir run --help')"},
    {"run {M} -p x --temperature 0.5",
     "the argument '--temperature' is not expected; did you mean '--temp'? (see 'kvasir run --help')"},
    {"run {M} -p x --max-tokens 5",
     "the argument '--max-tokens' is not expected; did you mean '--tokens'? (see 'kvasir run --help')"},
    {"run {M} -p x --n-predict 5",
     "the argument '--n-predict' is not expected; did you mean '--tokens'? (see 'kvasir run --help')"},
    {"run {M} -p x --ctx-size 512",
     "the argument '--ctx-size' is not expected; did you mean '--ctx'? (see 'kvasir run --help')"},
    {"run {M} -p x --kv_memory 1GiB",
     "the argument '--kv_memory' is not expected; did you mean '--kv-memory'? (see 'kvasir run --help')"},
    {"run {M} -p x --policy h2o",
     "the argument '--policy' is not expected; did you mean '--kv'? (see 'kvasir run --help')"},
    {"run {M} -p x --jsn", "the argument '--jsn' is not expected; did you mean '--json'? (see 'kvasir run --help')"},
    {"run {M} -p x json", "the argument 'json' is not expected; did you mean '--json'? (see 'kvasir run --help')"},
    {"run {M} -p x -temp 0.5",
     "the argument '-temp' is not expected; did you mean '--temp'? (see 'kvasir run --help')"},
    {"run {M} -prompt x", "the argument '-prompt' is not expected; did you mean '--prompt'? (see 'kvasir run --help')"},
    {"run {M} -p x --frobnicate", "the argument '--frobnicate' is not expected (see 'kvasir run --help')"},
    {"run {M} -p x --kv h20",
     "unknown retention policy 'h20'; did you mean 'h2o'? (the policies are: full, window, streaming, cascade, h2o, "
     "tova, lethe, snapkv, pyramidkv, cake, keydiff, lagkv, expected, vase, triattention, rkv, matching, kvzip, synckv, quest, random, recompute)"},
    {"policies streming",
     "unknown retention policy 'streming'; did you mean 'streaming'? (the policies are: full, window, streaming, "
     "cascade, h2o, tova, lethe, snapkv, pyramidkv, cake, keydiff, lagkv, expected, vase, triattention, rkv, matching, kvzip, synckv, quest, random, recompute)"},
    {"run {M} -p x --kv h2o:buget=64",
     "policy 'h2o' has no option 'buget'; did you mean 'budget'? (its options are: budget, recent, sinks, agg, value, "
     "every, pos, "
     "heads, protect)"},
    {"plan {M} --kv window:sise=64",
     "policy 'window' has no option 'sise'; did you mean 'size'? (its options are: size, protect)"},
    {"run {M} -p x --kv h2o:budget:64",
     "policy spec 'h2o:budget:64': 'budget:64' is not of the form key=value; the options of 'h2o' are: budget, recent, "
     "sinks, agg, value, every, pos, heads, protect"},
    {"run {M} -p x --kv streaming:realign=frame", "policy 'streaming': realign=frame must be one of: frames, rotate"},
    {"run {M} -p x --kv-type fp16",
     "unknown KV type 'fp16'; the types are: f32, f16, bf16, i16, q8, q4, q4o, q3, q2 [--kv-type]"},
    {"run {M} -p x --stop \\q",
     "--stop: '\\q' is no escape; there are \\n, \\t, \\r, \\xHH, and \\\\ for a backslash (see 'kvasir run --help')"},
};

constexpr Mistake kContradictory[] = {
    {"tokenize {M} --prompt x -f {T}", "--prompt excludes -f (see 'kvasir tokenize --help')"},
    {"run {M} -p x -c 512 --kv full", "-c: policy 'full' has no size in tokens to set; omit one of both"},
    {"run {M} -p x -c 512 --kv h2o:budget=100",
     "-c: 512 tokens and budget=100 of 'h2o:budget=100' both say how many tokens are kept; omit one of them"},
    {"run {M} -p x -c 512 --kv streaming:window=100",
     "-c: 512 tokens and window=100 of 'streaming:window=100' both say how many tokens are kept; omit one of them"},
    {"run {M} -p x -c 100k",
     "-c: '100k' is not a whole number (0, or 5 to 2^40); give 100000 or 102400 (see 'kvasir run --help')"},
    {"run {M} -p x -ctk q8_0",
     "the argument '-ctk' is not expected; did you mean '--kv-type'? (see 'kvasir run --help')"},
    {"run {M} -p x --kv streaming:cap=256,realign=rotate --kv-type q4",
     "policy 'streaming:sinks=4,window=252,realign=rotate' rotates each key 252 times while it is held, and keys in q4 "
     "are "
     "rounded anew each time, which ruins the text; leave realign=rotate out, prune more rarely (every=N), or store "
     "keys "
     "in q8 or more [--kv, --kv-type]"},
    {"plan {M} --kv streaming:cap=256,realign=rotate --kv-type k=q3,v=f16",
     "policy 'streaming:sinks=4,window=252,realign=rotate' rotates each key 252 times while it is held, and keys in q3 "
     "are "
     "rounded anew each time, which ruins the text; leave realign=rotate out, prune more rarely (every=N), or store "
     "keys "
     "in q8 or more [--kv, --kv-type]"},
    {"run {M} -p x --parts", "--parts goes through a document; give it with -f, and a question with -p"},
    {"run {M} -p x -c 512 --load {T}", "--load takes what is kept from the file; omit -c"},
    {"run {M} -p x --samples 2 --beams 2", "--samples and --beams exclude each other; omit one of them"},
    {"run {M} -p x --beams 2 -n 5 --seed 3",
     "--beams does not sample; omit the sampling options (--temp, --top-k, --seed, ...)"},
    {"run {M} -p x --samples 2 --temp 0",
     "--samples draws, and with --temp 0 all samples would be the same; omit one of them"},
    {"run {M} -p x --save s --samples 2", "--save keeps one continuation; omit --samples and --beams"},
    {"run {M} -p x --system hello", "--system is for a chat; add --chat"},
    {"run {M} -p x --system-file {T}", "--system-file is for a chat; add --chat"},
    {"run {M} -p x --chat --system hello --system-file {T}",
     "--system excludes --system-file (see 'kvasir run --help')"},
    {"run {M} -p x --kv streaming:cap=100,window=50", "policy 'streaming': give either cap or window, not both"},
    {"run {M} -p x --kv h2o:budget=16,recent=12,sinks=8",
     "policy 'h2o': sinks=8 and recent=12 together are above budget=16; lower them"},
    {"tokenize {M} -p x --no-answer", "--no-answer requires --chat (see 'kvasir tokenize --help')"},
};

constexpr Mistake kImpossible[] = {
    {"", "a command is missing (see 'kvasir --help')"},
    {"-m {M} -p x", "a command is missing before '-m' (see 'kvasir --help')"},
    {"model.gguf", "there is no command 'model.gguf'; did you mean 'run model.gguf'? (see 'kvasir --help')"},
    {"run hello -m {M}",
     "the model is given by its place and by -m; omit one of them, or give a text with -p (see 'kvasir run --help')"},
    {"plan {M} --model {M}",
     "the model is given by its place and by --model; omit one of them (see 'kvasir plan --help')"},
    {"plan -m some/model", "there is no file 'some/model'; for a model of the Hugging Face hub type -m hf:some/model"},
    {"info -hf", "-m needs a value (see 'kvasir info --help')"},
    {"run -hf some/model/x.bin -p x",
     "'hf:some/model/x.bin' names no GGUF file; give hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO/FILE.gguf"},
    {"pull", "name is required (see 'kvasir pull --help')"},
    {"pull missing.gguf", "'missing.gguf' is no model of the hub; give hf:USER/REPO or hf:USER/REPO:QUANT"},
    {"pull ollama:tiny", "ollama:tiny is fetched by 'ollama pull', and read where it is: -m ollama:tiny"},
    {"pull a/b --tries 0", "--tries 0 is outside 1 to 1000"},
    {"pull a/b --timeout 0", "--timeout 0 is not above 0 and up to 86400 s"},
    {"pull a/b --wait -1", "--wait -1 is outside 0 to 120 s"},
    {"models remove", "name is required (see 'kvasir models remove --help')"},
    {"run {M} -p", "-p needs a value (see 'kvasir run --help')"},
    {"run {M} -p x extra", "the argument 'extra' is not expected (see 'kvasir run --help')"},
    {"info {D}", "the folder '{D}' holds no GGUF file of a model"},
    {"run {D} -p x", "the folder '{D}' holds no GGUF file of a model"},
    {"run missing.gguf -p x", "cannot open 'missing.gguf': No such file or directory"},
    {"run {T} -p x",
     "'{T}': this is not a GGUF file: it begins with 'Once' instead of 'GGUF'; convert the model to GGUF first"},
    {"run {V} -p x", "'{V}': this file has a tokenizer but no weights; give the model's own .gguf file"},
    {"plan {V}", "'{V}': this file has a tokenizer but no weights; give the model's own .gguf file"},
    {"run {M} -f {B}",
     "'{B}' is not valid UTF-8 at byte 5 (0xE9); convert it with iconv, for example `iconv -f WINDOWS-1252 -t UTF-8`"},
    {"tokenize {M} -f {B}",
     "'{B}' is not valid UTF-8 at byte 5 (0xE9); convert it with iconv, for example `iconv -f WINDOWS-1252 -t UTF-8`"},
    {"run {M} -p x -n five", "-n: 'five' is not a whole number (-1 to 2^40) (see 'kvasir run --help')"},
    {"run {M} -p x --tokens=1.5", "--tokens: '1.5' is not a whole number (-1 to 2^40) (see 'kvasir run --help')"},
    {"run {M} -p x -n -5", "-n -5 is below -1 (no limit)"},
    {"run {M} -p x -t 5000", "-t 5000 is outside 0 (one per core) to 1024"},
    {"run {M} -p x --temp hot", "--temp: 'hot' is not a number (0 to 100) (see 'kvasir run --help')"},
    {"run {M} -p x --temp -1", "--temp is -1; it must be at least 0 and at most 100"},
    {"run {M} -p x --page 20", "a page of 20 tokens is not possible; choose 16, 32 or 64 [--page]"},
    {"run {M} -p x --page 1", "a page of 1 token is not possible; choose 16, 32 or 64 [--page]"},
    {"run {M} -p x --chunk 99999999999",
     "--chunk: '99999999999' is out of range (0 to 4096) (see 'kvasir run --help')"},
    {"run {M} -p x --seed -2", "--seed: '-2' is out of range (0 to 2^64 - 1) (see 'kvasir run --help')"},
    {"run {M} -p x -c 3", "-c 3 is outside 5 to 2^40 tokens (0: the trained context)"},
    {"run {M} -p x --samples 65", "--samples 65 is outside 1 to 64"},
    {"plan {M} --batch 0", "--batch 0 is outside 1 to 65536 sequences"},
    {"bench {M} --depth 1,x", "--depth: 'x' is not a whole number (0 to 2^26) (see 'kvasir bench --help')"},
};

class Mistakes : public Errors {
 protected:
  void SetUp() override {
    Errors::SetUp();
    std::ofstream(file("latin")) << "\xEF\xBB\xBF"
                                    "x \xE9t\xE9";
    std::ofstream(file("vocabulary"), std::ios::binary) << vocabulary();
  }

  std::string filled_in(std::string text) const {
    const std::pair<std::string, std::string> values[] = {{"{M}", model_path()},
                                                          {"{T}", file("text")},
                                                          {"{D}", folder()},
                                                          {"{B}", file("latin")},
                                                          {"{V}", file("vocabulary")}};
    for (const auto& [name, value] : values)
      for (std::size_t at; (at = text.find(name)) != std::string::npos;) text.replace(at, name.size(), value);
    return text;
  }

  void expect_told(std::span<const Mistake> mistakes) const {
    for (const Mistake& mistake : mistakes) {
      std::istringstream words(filled_in(mistake.arguments));
      const Arguments arguments(std::istream_iterator<std::string>(words), {});
      expect_refused(arguments, 2, filled_in(mistake.message));
    }
  }

 private:
  // A GGUF file with two keys and no tensors.
  static std::string vocabulary() {
    std::string out = "GGUF";
    const auto put = [&](auto number) { out.append(reinterpret_cast<const char*>(&number), sizeof number); };
    const auto text = [&](std::string_view value) {
      put(std::uint64_t{value.size()});
      out += value;
    };
    put(std::uint32_t{3});
    put(std::uint64_t{0});
    put(std::uint64_t{2});
    text("general.architecture");
    put(std::uint32_t{8});  // a string
    text("llama");
    text("tokenizer.ggml.tokens");
    put(std::uint32_t{9});  // an array of strings
    put(std::uint32_t{8});
    put(std::uint64_t{1});
    text("<unk>");
    return out;
  }
};

TEST_F(Mistakes, AreSixtyOrMore) {
  EXPECT_GE(std::size(kMisspelt) + std::size(kContradictory) + std::size(kImpossible), 60);
}

TEST_F(Mistakes, Misspelt) {
  expect_told(kMisspelt);
}

TEST_F(Mistakes, Contradictory) {
  expect_told(kContradictory);
}

TEST_F(Mistakes, Impossible) {
  expect_told(kImpossible);
}

}  // namespace
}  // namespace kvasir::test
