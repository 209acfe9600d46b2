// Options and arguments as people expect them: names, places, repetition, variables, texts from files, forms of output.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "cli/errors.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

constexpr std::string_view kMark = "\xEF\xBB\xBF";

// A variable of the environment, for the programs that a test runs.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

class Options : public Errors {
 protected:
  std::string with(const std::string& name, std::string_view content) const {
    std::ofstream(file(name), std::ios::binary) << content;
    return file(name);
  }
};

TEST_F(Options, AModelByItsPlace) {
  const std::string model = model_path();
  const std::string text = run_json({"-p", "Once", "-n", "4", "--temp", "0"})["text"];
  EXPECT_EQ(json_of({"run", model, "-t", "1", "-p", "Once", "-n", "4", "--temp", "0", "--json"})["text"], text);
  EXPECT_EQ(json_of({"run", "-p", "Once", "-n", "4", "--temp", "0", "--json", model})["text"], text);
  EXPECT_EQ(json_of({"plan", model, "--json"}), json_of({"plan", "-m", model, "--json"}));
  EXPECT_EQ(json_of({"info", model, "--json"})["tensors"], json_of({"info", "-m", model, "--json"})["tensors"]);
  EXPECT_EQ(run_program({"tokenize", model, "-p", "Once"}).out,
            run_program({"tokenize", "--model", model, "-p", "Once"}).out);
}

TEST_F(Options, TheLastOfARepeatedOptionWins) {
  const Json json =
      run_json({"-n", "9", "-p", "x", "--seed", "1", "--json", "-p", "Once", "--tokens=2", "--seed", "7"});
  EXPECT_EQ(json["tokens"], 2);
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["prompt_tokens"], run_json({"-p", "Once", "-n", "2"})["prompt_tokens"]);
}

TEST_F(Options, ContextIsTheCapOfStreaming) {
  EXPECT_EQ(run_json({"-p", "x", "-n", "2", "-c", "64"})["kv"]["policy"], "streaming:sinks=4,window=60");
  EXPECT_EQ(run_json({"-p", "x", "-n", "2", "-c", "0"})["kv"]["policy"],
            run_json({"-p", "x", "-n", "2"})["kv"]["policy"]);
  EXPECT_EQ(json_of({"plan", model_path(), "-c", "64", "--json"})["tokens"], 64);
}

TEST_F(Options, VariablesAreDefaults) {
  const Variable model("KVASIR_MODEL", model_path());
  const Variable threads("KVASIR_THREADS", "1");
  const Variable policy("KVASIR_KV", "window:size=40");
  const Variable memory("KVASIR_KV_MEMORY", "2MiB");
  const Json json = json_of({"run", "-p", "Once", "-n", "2", "--json"});
  EXPECT_EQ(json["kv"]["policy"], "window:size=40");
  EXPECT_EQ(json["kv"]["budget"], 2 << 20);
  EXPECT_EQ(json_of({"plan", "--json"})["policy"], "window:size=40");
  // The command line wins, by name and by place.
  const Json other = json_of({"run", "-p", "Once", "-n", "2", "--kv", "full", "--kv-memory", "8MiB", "--json"});
  EXPECT_EQ(other["kv"]["policy"], "full");
  EXPECT_EQ(other["kv"]["budget"], 8 << 20);
  EXPECT_EQ(json_of({"run", "-p", "Once", "-n", "2", "-c", "64", "--json"})["kv"]["policy"],
            "streaming:sinks=4,window=60");
  expect_refused({"plan", file("missing")}, 2, "cannot open '" + file("missing") + "': No such file or directory");
  // A session file decides the policy; a variable does not contradict it.
  EXPECT_EQ(run_program({"run", "-p", "Once", "-n", "2", "--kv", "full", "--save", file("session")}).exit_code, 0);
  EXPECT_EQ(json_of({"run", "-p", "Once", "-n", "2", "--load", file("session"), "--json"})["kv"]["policy"], "full");
  // Commands that measure policies do not take one from the surroundings.
  EXPECT_EQ(json_of({"eval", "ppl", "-f", file("text"), "--json"})["runs"][0]["policy"], "full");
}

TEST_F(Options, AWrongVariableIsNamed) {
  {
    const Variable model("KVASIR_MODEL", file("missing"));
    expect_refused({"plan"}, 2, "cannot open '" + file("missing") + "': No such file or directory [KVASIR_MODEL]");
  }
  const Variable model("KVASIR_MODEL", model_path());
  {
    const Variable threads("KVASIR_THREADS", "many");
    expect_refused({"run", "-p", "x"}, 2, "KVASIR_THREADS: 'many' is not a whole number (0 to 1024)" + see("run"));
  }
  {
    const Variable threads("KVASIR_THREADS", "5000");
    expect_refused({"run", "-p", "x"}, 2, "KVASIR_THREADS 5000 is outside 0 (one per core) to 1024");
    expect_refused({"run", "-p", "x", "-t", "6000"}, 2, "-t 6000 is outside 0 (one per core) to 1024");
  }
  {
    const Variable policy("KVASIR_KV", "full:size=3");
    expect_refused({"run", "-p", "x"}, 2, "policy 'full' has no option 'size'; its options are: thoughts [KVASIR_KV]");
  }
  {
    const Variable memory("KVASIR_KV_MEMORY", "lots");
    expect_refused({"run", "-p", "x"}, 2, "KVASIR_KV_MEMORY: 'lots' is no size" + kSize + see("run"));
  }
}

TEST_F(Options, QuietLeavesErrorsAlone) {
  const Finished done = run_model({"-q", "-p", "Once", "-n", "4"});
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.err, "");
  EXPECT_NE(done.out, "");
  expect_refused(run_model({"--quiet", "-p", "x", "--isa", "none"}), 2,
                 "no kernels 'none' on this machine; " + kernels() + " [--isa]");
}

TEST_F(Options, TheSummaryNamesTheSeed) {
  const Finished done = run_model({"-p", "Once", "-n", "2", "--seed", "31"});
  EXPECT_NE(done.err.find("ended by length, seed 31;"), std::string::npos) << done.err;
}

TEST_F(Options, ASystemMessageFromAFile) {
  const Arguments chat = {"--chat", "-p", "Who are you?", "-n", "6", "--temp", "0"};
  const auto reply = [&](const std::string& option, const std::string& value) {
    Arguments arguments = chat;
    arguments.insert(arguments.end(), {option, value});
    return run_json(arguments);
  };
  const Json said = reply("--system", "You are an old sailor.");
  const Json read = reply("--system-file", with("system", std::string(kMark) + "You are an old sailor."));
  EXPECT_EQ(read["text"], said["text"]);
  EXPECT_EQ(read["prompt_tokens"], said["prompt_tokens"]);
  EXPECT_GT(read["prompt_tokens"], run_json(chat)["prompt_tokens"]);
  expect_refused(run_model({"--chat", "-p", "x", "--system-file", file("empty")}), 2,
                 "'" + file("empty") + "' is empty; give a system message");
}

TEST_F(Options, AByteOrderMarkIsNoText) {
  const std::string plain = with("plain", "Once upon a time"),
                    marked = with("marked", std::string(kMark) + "Once upon a time");
  const std::string ids = run_program({"tokenize", model_path(), "--ids", "-f", plain}).out;
  EXPECT_EQ(run_program({"tokenize", model_path(), "--ids", "-f", marked}).out, ids);
  EXPECT_EQ(run_program({"tokenize", model_path(), "--ids"}, {.input = bytes_of(marked)}).out, ids);
  EXPECT_EQ(run_program({"tokenize", model_path(), "--ids", "-p", "Once upon a time"}).out, ids);
  EXPECT_EQ(run_json({"-f", marked, "-n", "2"})["prompt_tokens"], run_json({"-f", plain, "-n", "2"})["prompt_tokens"]);
  // A mark elsewhere is a character.
  EXPECT_NE(
      run_program({"tokenize", model_path(), "--ids", "-f", with("two", std::string(kMark) + bytes_of(marked))}).out,
      ids);
  expect_refused(run_model({"-f", "-"}, {.input = std::string(kMark) + "ab\xFF"}), 2,
                 "standard input is not valid UTF-8 at byte 5 (0xFF)" + kIconv);
}

TEST_F(Options, EscapesInStopStrings) {
  const Json whole = run_json({"-p", "Once upon a time", "-n", "30", "--temp", "0"});
  const std::string text = whole["text"];
  ASSERT_NE(text.find(' ', 1), std::string::npos) << text;
  for (const char* stop : {" ", "\\x20"}) {
    const Json stopped = run_json({"-p", "Once upon a time", "-n", "30", "--temp", "0", "--stop", stop});
    EXPECT_EQ(stopped["finish_reason"], "stop");
    EXPECT_EQ(stopped["text"], text.substr(0, text.find(' ')));
  }
  // An escaped backslash is a backslash, which this text has none of.
  EXPECT_EQ(run_json({"-p", "Once upon a time", "-n", "30", "--temp", "0", "--stop", "\\\\x20"})["text"], text);
}

TEST_F(Options, JsonByLines) {
  const Arguments arguments = {"-p", "Once upon a time", "-n", "12", "--seed", "3", "--json-stream"};
  const auto lines_of = [](const std::string& out) {
    std::vector<Json> lines;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
    return lines;
  };
  const std::vector<Json> lines = lines_of(run_model(arguments).out);
  ASSERT_GT(lines.size(), 3U);
  std::string text;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), 1U);
    text += lines[i]["text"].get<std::string>();
  }
  EXPECT_EQ(lines.back()["text"], text);
  EXPECT_EQ(lines.back()["tokens"], 12);
  EXPECT_EQ(run_json({"-p", "Once upon a time", "-n", "12", "--seed", "3"})["text"], text);

  // Of several samples, each line says whose it is.
  Arguments two = arguments;
  two.insert(two.end(), {"--samples", "2"});
  const std::vector<Json> both = lines_of(run_model(two).out);
  std::vector<std::string> texts(2);
  for (std::size_t i = 0; i + 1 < both.size(); ++i) texts.at(both[i]["sample"]) += both[i]["text"].get<std::string>();
  for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(both.back()["samples"][s]["text"], texts[s]);
}

TEST_F(Options, LogProbabilities) {
  const Arguments greedy = {"-p", "Once upon a time", "-n", "6", "--temp", "0", "--logprobs", "3"};
  const Json json = run_json(greedy);
  ASSERT_EQ(json["logprobs"].size(), 6U);
  std::string text;
  for (const Json& token : json["logprobs"]) {
    ASSERT_EQ(token["top"].size(), 3U);
    EXPECT_EQ(token["id"], token["top"][0]["id"]);
    EXPECT_EQ(token["logprob"], token["top"][0]["logprob"]);
    double sum = 0, last = 0;
    for (const Json& choice : token["top"]) {
      EXPECT_LE(choice["logprob"], last);
      sum += std::exp(last = choice["logprob"]);
    }
    EXPECT_LE(sum, 1 + 1e-12);
    text += token["piece"].get<std::string>();
  }
  EXPECT_EQ(json["text"], text);
  // Of the model itself: neither temperature nor truncation changes the first token's distribution.
  const Json drawn =
      run_json({"-p", "Once upon a time", "-n", "6", "--temp", "2", "--top-k", "2", "--seed", "5", "--logprobs", "3"});
  EXPECT_EQ(drawn["logprobs"][0]["top"], json["logprobs"][0]["top"]);
  for (const Json& token : drawn["logprobs"]) EXPECT_LE(token["logprob"], token["top"][0]["logprob"]);
  // None of the likeliest; of each sample.
  EXPECT_TRUE(run_json({"-p", "Once", "-n", "1", "--logprobs", "0"})["logprobs"][0]["top"].empty());
  EXPECT_FALSE(run_json({"-p", "Once", "-n", "1"}).contains("logprobs"));
  const Json several = run_json({"-p", "Once", "-n", "2", "--samples", "2", "--logprobs", "1"});
  for (const Json& sample : several["samples"]) EXPECT_EQ(sample["logprobs"].size(), sample["tokens"]);
  expect_all_refused({{{"--logprobs", "2"}, 2, "--logprobs is for JSON; give --json too"},
                      {{"--json", "--logprobs", "101"}, 2, "--logprobs 101 is outside 0 to 100 (-1: none)"}},
                     run_arguments({"-p", "x"}));
}

// Options that people know from other programs do what they mean here, or say in a line that they do nothing.
TEST_F(Options, OfOtherPrograms) {
  const Json plain = run_json({"-p", "Once", "-n", "4", "--temp", "0"});
  for (const Arguments& foreign : {Arguments{"-ngl", "99"},
                                   {"--n-gpu-layers=99"},
                                   {"--gpu-layers", "99"},
                                   {"-fa", "on"},
                                   {"-fa"},
                                   {"--jinja"},
                                   {"--no-mmap"}}) {
    Arguments all = {"-p", "Once", "-n", "4", "--temp", "0"};
    all.insert(all.end(), foreign.begin(), foreign.end());
    const Finished done = run_model(all);
    EXPECT_EQ(done.exit_code, 0) << foreign[0] << ": " << done.err;
    EXPECT_EQ(done.out, plain["text"].get<std::string>() + "\n") << foreign[0];
    const std::string name = foreign[0].substr(0, foreign[0].find('='));
    EXPECT_NE(done.err.find("kvasir: " + name + " has no effect: "), std::string::npos) << done.err;
  }
  EXPECT_EQ(run_model({"-p", "Once", "-n", "4", "-ngl", "99", "-q"}).err, "");
  const Json chat = run_json({"-p", "Once", "-n", "4", "--temp", "0", "--chat"});
  for (const char* name : {"-cnv", "--conversation"})
    EXPECT_EQ(run_json({"-p", "Once", "-n", "4", "--temp", "0", name})["prompt_tokens"], chat["prompt_tokens"]) << name;
  EXPECT_EQ(run_json({"-p", "Once", "-n", "4", "--temp", "0", "-no-cnv"})["prompt_tokens"], plain["prompt_tokens"]);
  EXPECT_NE(run_json({"-p", "Once", "-n", "1", "--seed", "-1"})["seed"],
            run_json({"-p", "Once", "-n", "1", "--seed", "-1"})["seed"]);
  EXPECT_EQ(run_json({"-p", "Once", "-n", "1", "-c", "64", "--kv", "h2o"})["kv"]["policy"], "h2o:budget=64,recent=32");
  EXPECT_EQ(run_json({"-p", "Once", "-n", "1", "-c", "64", "--kv", "snapkv+streaming"})["kv"]["policy"],
            "snapkv:budget=1024,window=16,kernel=15+streaming:sinks=4,window=60");
  EXPECT_EQ(run_json({"-p", "Once", "-n", "1", "-c", "64", "--kv", "window"})["kv"]["policy"], "window:size=64");
}

TEST_F(Options, OnePolicyByName) {
  const Json all = json_of({"policies", "--json"}), one = json_of({"policies", "h2o", "--json"});
  ASSERT_EQ(one["policies"].size(), 1U);
  EXPECT_NE(std::ranges::find(all["policies"], one["policies"][0]), all["policies"].end());
  const Finished text = run_program({"policies", "h2o"});
  EXPECT_NE(text.out.find("heavy hitters"), std::string::npos);
  EXPECT_EQ(text.out.find("\nlethe"), std::string::npos);
}

// What a shell prints.
std::string shell(const std::string& script) {
  std::FILE* pipe = ::popen(("bash -c '" + script + "' 2>&1").c_str(), "r");
  if (pipe == nullptr) return "no shell";
  std::string out;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  ::pclose(pipe);
  return out;
}

TEST_F(Options, CompletionInBash) {
  const auto completed = [&](const std::string& words, int current) {
    return shell("source <(\"" + binary_path() + "\" completion bash); COMP_WORDS=(" + words +
                 "); COMP_CWORD=" + std::to_string(current) + "; _kvasir; echo \"${COMPREPLY[*]}\"");
  };
  EXPECT_EQ(completed("kvasir r", 1), "run replay record\n");
  EXPECT_EQ(completed("kvasir eval p", 2), "ppl\n");
  EXPECT_EQ(completed("kvasir run --kv-m", 2), "--kv-memory\n");
  EXPECT_EQ(completed("kvasir run --kv s", 3), "streaming snapkv synckv\n");
  EXPECT_EQ(completed("kvasir run --file x --kv-type b", 5), "bf16\n");
  EXPECT_EQ(completed("kvasir eval ppl --compare", 3), "--compare-full\n");
  EXPECT_EQ(completed("kvasir policies h", 2), "h2o\n");
  EXPECT_EQ(completed("kvasir run -m \"\"", 3), "\n");  // a file: the shell's own names
  expect_refused({"completion", "bsh"}, 2, "there is no completion for 'bsh'; the shells are: bash, zsh, fish");
}

TEST_F(Options, ManualPages) {
  const Finished all = run_program({"man", "--all", file("man")});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  for (const char* page : {"kvasir.1", "kvasir-run.1", "kvasir-eval.1", "kvasir-eval-ppl.1", "kvasir-policies.1"})
    EXPECT_TRUE(std::filesystem::exists(file("man") + "/" + page)) << page;
  const std::string run = run_program({"man", "run"}).out;
  EXPECT_EQ(bytes_of(file("man") + "/kvasir-run.1"), run);
  EXPECT_TRUE(run.starts_with(".TH KVASIR-RUN 1 ")) << run.substr(0, 40);
  for (const char* part : {"\\-\\-kv\\-memory", ".SS Sampling", ".SH EXAMPLES", "KVASIR_MODEL"})
    EXPECT_NE(run.find(part), std::string::npos) << part;
  expect_refused({"man", "rnu"}, 2, "there is no page 'kvasir-rnu'; did you mean 'kvasir-run'?");
}

TEST_F(Options, HelpIsInGroupsWithThreeExamples) {
  const std::string help = run_program({"run", "--help"}).out;
  for (const char* part : {"\nWhat is kept:", "\nSampling:", "\nSessions:", "\nOutput:", "\nExamples:\n"})
    EXPECT_NE(help.find(part), std::string::npos) << part;
  const std::string examples = help.substr(help.find("\nExamples:\n") + 1);
  EXPECT_EQ(std::ranges::count(examples, '\n'), 4 + (examples.ends_with("\n\n") ? 1 : 0)) << examples;
  const std::string program = run_program({"--help"}).out;
  EXPECT_NE(program.find("KVASIR_KV_MEMORY"), std::string::npos);
  EXPECT_EQ(program.find("\n  completion"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::test
