// kvasir run: what it prints, and that settings which must not change the output do not.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/program.h"

namespace kvasir::test {
namespace {

const std::string kPrompt = "Once upon a time";

TEST(Run, JsonHasTheFieldsOfTheContract) {
  const Json json = run_json({"-p", kPrompt, "-n", "12", "--seed", "5", "--kv", "streaming:sinks=4,window=60"});
  EXPECT_TRUE(json["text"].is_string());
  EXPECT_EQ(json["prompt_tokens"], 6);
  EXPECT_EQ(json["tokens"], 12);
  EXPECT_GT(json["tokens_per_s"].get<double>(), 0);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["kv"]["policy"], "streaming:sinks=4,window=60");
  EXPECT_EQ(json["kv"]["codec"], "f16");
  EXPECT_EQ(json["kv"]["seen"], 18);
  EXPECT_EQ(json["kv"]["kept"], 18);
  EXPECT_GT(json["kv"]["bytes"].get<std::int64_t>(), 0);
  EXPECT_GE(json["kv"]["bytes_peak"], json["kv"]["bytes"]);
}

// What is printed at its end has one; what is printed as it comes says how to stop it.
TEST(Run, WithoutANumberOfTokens) {
  const Json json = run_json({"-p", kPrompt, "--ignore-eos", "--kv", "streaming:cap=64"});
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["tokens"], 1024);
  const Finished samples =
      run_model({"-p", kPrompt, "--ignore-eos", "--kv", "streaming:cap=64", "--samples", "2", "--seed", "1"});
  EXPECT_NE(samples.out.find("--- sample 2 of 2, seed 2, 1024 tokens, ended by length"), std::string::npos);
  const std::string how = "kvasir: no -n is given: Ctrl-C stops a text that does not end by itself\n";
  EXPECT_EQ(samples.err.find(how), std::string::npos);
  const Finished text = run_model({"-p", kPrompt, "--kv", "full", "--kv-memory", "1MiB", "--ignore-eos"});
  EXPECT_EQ(text.err.find(how), 0u) << text.err;
  EXPECT_EQ(text.err.find(how, 1), std::string::npos) << "once";
  EXPECT_NE(text.err.find("ended by kv_memory"), std::string::npos) << text.err;
  EXPECT_EQ(run_model({"-p", kPrompt, "-n", "3"}).err.find(how), std::string::npos);
}

TEST(Run, PromptFileAndPipeReadTheSame) {
  const std::string path = ::testing::TempDir() + "kvasir-prompt-" + std::to_string(::getpid());
  std::ofstream(path) << kPrompt;
  const Arguments rest = {"-n", "20", "--seed", "3"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), rest.begin(), rest.end());
    return more;
  };
  const std::string text = run_json(with({"-p", kPrompt}))["text"];
  EXPECT_FALSE(text.empty());
  for (const auto& [arguments, input] : {std::pair<Arguments, std::string>{{"-p", kPrompt}, ""},
                                         {{"-f", path}, ""},
                                         {{"-f", "-"}, kPrompt},
                                         {{}, kPrompt}}) {
    const Finished done = run_model(with(arguments), {.input = input});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(done.out, text + "\n");
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    EXPECT_NE(done.err.find("read 6 tokens"), std::string::npos) << done.err;
    EXPECT_NE(done.err.find("kept 26 of 26 tokens seen"), std::string::npos) << done.err;
  }
  std::filesystem::remove(path);
}

TEST(Run, SeedDecides) {
  const auto text = [](const std::string& seed) {
    return run_json({"-p", kPrompt, "-n", "40", "--seed", seed})["text"].get<std::string>();
  };
  EXPECT_EQ(text("11"), text("11"));
  EXPECT_NE(text("11"), text("12"));
  const Json drawn = run_json({"-p", kPrompt, "-n", "40"});
  EXPECT_EQ(text(std::to_string(drawn["seed"].get<std::uint64_t>())), drawn["text"]);
}

TEST(Run, ThreadsAndChunksChangeNothing) {
  const std::string prompt = some_text(700);
  for (const std::string policy : {"full", "streaming:sinks=4,window=124", "window:size=100",
                                   "streaming:sinks=4,window=124,every=16,realign=rotate"}) {
    std::string first;
    for (const std::string threads : {"1", "2"})
      for (const std::string chunk : {"1", "64", "512"}) {
        const Json json = json_of({"run", "-m", model_path(), "-t", threads, "--chunk", chunk, "-p", prompt, "-n", "24",
                                   "--temp", "0", "--ignore-eos", "--kv", policy, "--json"});
        if (first.empty()) first = json["text"];
        EXPECT_EQ(json["text"], first) << policy << ", " << threads << " threads, chunk " << chunk;
      }
  }
}

TEST(Run, StopStringEndsTheTextBeforeIt) {
  const std::string text = run_json({"-p", kPrompt, "-n", "40", "--temp", "0"})["text"];
  ASSERT_GT(text.size(), 40u);
  for (const std::size_t length : {1u, 3u, 9u}) {
    const std::string stop = text.substr(text.size() / 2, length);
    const Json json =
        run_json({"-p", kPrompt, "-n", "40", "--temp", "0", "--stop", "never to be seen", "--stop", stop});
    EXPECT_EQ(json["text"], text.substr(0, text.find(stop))) << "'" << stop << "'";
    EXPECT_EQ(json["finish_reason"], "stop");
  }
  const Json unstopped = run_json({"-p", kPrompt, "-n", "40", "--temp", "0", "--stop", text + " and more"});
  EXPECT_EQ(unstopped["text"], text);
  EXPECT_EQ(unstopped["finish_reason"], "length");
}

TEST(Run, NoTokensIsAPossibleNumber) {
  const Json json = run_json({"-p", kPrompt, "-n", "0"});
  EXPECT_EQ(json["text"], "");
  EXPECT_EQ(json["tokens"], 0);
  EXPECT_EQ(json["prompt_tokens"], 6);
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST(Run, PenaltiesActOnTheWindow) {
  const auto text = [](const Arguments& more) {
    Arguments arguments = {"-p", some_text(60), "-n", "40", "--temp", "0", "--ignore-eos"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_json(arguments)["text"].get<std::string>();
  };
  const std::string plain = text({});
  for (const Arguments& penalty : {Arguments{"--repeat-penalty", "3"}, Arguments{"--frequency-penalty", "5"},
                                   Arguments{"--presence-penalty", "9"}}) {
    EXPECT_NE(text(penalty), plain) << penalty.front();
    Arguments none = penalty;
    none.insert(none.end(), {"--penalty-window", "0"});
    EXPECT_EQ(text(none), plain) << penalty.front();
  }
}

TEST(Run, EveryPolicyOptionIsTaken) {
  for (const auto& [given, canonical] : {std::pair<std::string, std::string>{"full", "full"},
                                         {"window:size=50", "window:size=50"},
                                         {"streaming:cap=100", "streaming:sinks=4,window=96"},
                                         {"streaming:window=60,sinks=0", "streaming:sinks=0,window=60"},
                                         {"streaming:sinks=2,window=60,every=8,slack=4,max_drop=3,realign=rotate",
                                          "streaming:sinks=2,window=60,every=8,slack=4,max_drop=3,realign=rotate"}}) {
    const Json json = run_json({"-p", kPrompt, "-n", "4", "--kv", given});
    EXPECT_EQ(json["kv"]["policy"], canonical);
  }
  for (const std::string type : {"f32", "f16", "bf16", "q8", "q4", "q4o", "q3", "q2"})
    EXPECT_EQ(run_json({"-p", kPrompt, "-n", "4", "--kv-type", type})["kv"]["codec"], type);
}

TEST(Run, PlanKnowsWhatAutoIs) {
  for (const std::string isa : {"generic", "avx2", "avx512", "amx"}) {
    const Arguments chosen = {"--kv-type", "auto", "--isa", isa, "--kv", "full"};
    Arguments run = {"-p", kPrompt, "-n", "4"},
              plan = {"plan", "-m", bundled_model(), "--json", "--ctx", "10", "--prompt", "6"};
    run.insert(run.end(), chosen.begin(), chosen.end());
    plan.insert(plan.end(), chosen.begin(), chosen.end());
    if (const Finished tried = run_model(run); tried.exit_code != 0) {
      EXPECT_NE(tried.err.find("no kernels '" + isa + "' on this machine"), std::string::npos) << tried.err;
      continue;
    }
    const Json ran = run_json(run), planned = json_of(plan);
    EXPECT_EQ(ran["kv"]["codec"], isa == "avx2" || isa == "avx512" ? "i16" : "f16") << isa;
    EXPECT_EQ(planned["codec"], ran["kv"]["codec"]) << isa;
  }
}

TEST(Run, SaysWhenItBeginsToForget) {
  const std::string prompt = some_text(300);
  const Arguments arguments = {"-p", prompt, "-n", "10", "--kv", "streaming:sinks=4,window=60", "--ignore-eos"};
  const Finished done = run_model(arguments);
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.error_lines(), 2) << done.err;
  EXPECT_NE(done.err.find(" tokens to read; 64 of "), std::string::npos) << done.err;
  // What is written is not known before: it is said when the first token goes.
  const Finished written =
      run_model({"-p", "Once", "-n", "100", "--kv", "streaming:sinks=4,window=60", "--ignore-eos"});
  EXPECT_NE(written.err.find("kvasir: 65 tokens seen, 64 kept: it begins to forget"), std::string::npos) << written.err;
  const Json json = run_json(arguments);
  EXPECT_EQ(json["kv"]["kept"], 64);
  EXPECT_EQ(json["kv"]["seen"].get<int>(), json["prompt_tokens"].get<int>() + 10);
  EXPECT_GT(json["prompt_tokens"], 300);
  EXPECT_NE(done.err.find("kept 64 of " + std::to_string(json["kv"]["seen"].get<int>()) + " tokens seen"),
            std::string::npos)
      << done.err;
  // No notice without a dropped token.
  EXPECT_EQ(run_model({"-p", prompt, "-n", "10", "--kv", "streaming:sinks=4,window=600"}).error_lines(), 1);
}

TEST(Run, FullRefusesATextBeyondTheContext) {
  expect_refused(
      run_model({"-p", some_text(2400), "-n", "1", "--kv", "full"}), 1,
      "this model's maximum context length is 2048 tokens; the text has 2403, policy 'full' keeps all of them, "
      "and there is room for 2048: use a policy that forgets, such as streaming, or a shorter text [--kv]");
  EXPECT_EQ(run_json({"-p", some_text(2400), "-n", "1"})["kv"]["kept"], 2048);
}

TEST(Run, FullEndsWithTheContext) {
  const Json json = run_json({"-p", some_text(1900), "--kv", "full", "--ignore-eos"});
  EXPECT_EQ(json["finish_reason"], "context");
  EXPECT_EQ(json["kv"]["seen"], 2048);
  EXPECT_EQ(json["kv"]["kept"], 2048);
  EXPECT_EQ(json["prompt_tokens"].get<int>() + json["tokens"].get<int>(), 2048);
}

}  // namespace
}  // namespace kvasir::test
