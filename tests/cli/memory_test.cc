// Memory: predicted, bounded, reported; and all three agree.
#include "cli/program.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"

namespace kvasir::test {
namespace {

Json plan(const Arguments& more) {
  Arguments arguments = {"plan", "-m", model_path(), "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return json_of(arguments);
}

TEST(Memory, PeakIsWhatThePlanSaid) {
  struct Case {
    std::string policy, type, chunk, page;
    int words, tokens;
  };
  for (const Case& c : {Case{"full", "f16", "512", "32", 700, 33},
                        {"full", "f32", "64", "16", 100, 0},
                        {"full", "bf16", "1", "64", 40, 90},
                        {"streaming:sinks=4,window=60", "f16", "512", "32", 300, 40},
                        {"streaming:sinks=4,window=60", "f16", "512", "32", 20, 30},
                        {"streaming:sinks=4,window=252,every=64,slack=8", "f32", "128", "32", 900, 300},
                        {"streaming:sinks=40,window=200,every=30,max_drop=10", "bf16", "100", "16", 500, 100},
                        {"streaming:sinks=4,window=124,realign=rotate,every=16", "f16", "512", "64", 600, 60},
                        {"window:size=100", "f16", "37", "16", 600, 200},
                        {"window:size=1", "f16", "512", "32", 50, 20},
                        {"full", "q4", "512", "32", 700, 33},
                        {"full", "k=q8,v=q2", "64", "16", 100, 90},
                        {"full", "q3,recent=40", "100", "32", 400, 70},
                        {"full", "q4o", "1", "64", 40, 90},
                        {"streaming:sinks=4,window=60", "q4", "512", "32", 300, 40},
                        {"streaming:sinks=4,window=252,every=64,slack=8", "q8,recent=64", "128", "32", 900, 300},
                        {"streaming:sinks=4,window=124,realign=rotate,every=16", "q4,rotate=kv", "512", "64", 600, 60},
                        {"window:size=100", "q2", "37", "16", 600, 200}}) {
    SCOPED_TRACE(c.policy + " " + c.type);
    const Json run = run_json({"-p", some_text(c.words), "-n", std::to_string(c.tokens), "--ignore-eos", "--kv",
                               c.policy, "--kv-type", c.type, "--chunk", c.chunk, "--page", c.page});
    const int prompt = run["prompt_tokens"];
    const Json planned = plan({"--ctx", std::to_string(prompt + c.tokens), "--prompt", std::to_string(prompt), "--kv",
                               c.policy, "--kv-type", c.type, "--chunk", c.chunk, "--page", c.page});
    EXPECT_EQ(run["kv"]["seen"], prompt + c.tokens);
    EXPECT_EQ(run["kv"]["bytes_peak"], planned["kv_bytes"]);
    EXPECT_EQ(run["kv"]["kept_max"], planned["tokens_seen_max"]);
    EXPECT_EQ(planned["kv_bytes"].get<std::uint64_t>(),
              planned["kv_pages"].get<std::uint64_t>() * planned["kv_page_bytes"].get<std::uint64_t>() +
                  planned["kv_open_pages"].get<std::uint64_t>() * planned["kv_open_page_bytes"].get<std::uint64_t>() +
                  planned["kv_table_bytes"].get<std::uint64_t>());
    // The same budget suffices, one byte less does not.
    const std::uint64_t bytes = planned["kv_bytes"];
    if (c.policy != "full") continue;
    const auto bounded = [&](std::uint64_t budget) {
      return run_model({"-p", some_text(c.words), "-n", std::to_string(c.tokens), "--ignore-eos", "--kv", c.policy,
                        "--kv-type", c.type, "--chunk", c.chunk, "--page", c.page, "--kv-memory",
                        std::to_string(budget)});
    };
    EXPECT_NE(bounded(bytes).err.find("ended by length"), std::string::npos);
    EXPECT_EQ(bounded(bytes - 1).err.find("ended by length"), std::string::npos);
  }
}

// And `run` ends there.
TEST(Memory, PlanSaysWhereTheTrainedContextEnds) {
  const auto planned = [](const std::string& tokens, const std::string& policy) {
    return run_program({"plan", "-m", model_path(), "--ctx", tokens, "--kv", policy}).out;
  };
  const std::string said = "The trained context is 2048 tokens";
  EXPECT_EQ(planned("2048", "full").find(said), std::string::npos);
  EXPECT_EQ(plan({"--ctx", "9000"})["trained_context"], 2048);
  struct Case {
    std::string policy, said;  // of run
    bool ends;                 // a text of 2,500 tokens
  };
  for (const Case& c : {Case{"full", "run reads and writes no more", true},
                        {"h2o:budget=256,recent=128,pos=original", "run reads and writes no more", true},
                        {"h2o:budget=30%", "run holds no more", false},
                        {"h2o:budget=256,recent=128", "", false},
                        {"streaming:cap=512", "", false}}) {
    SCOPED_TRACE(c.policy);
    const std::string out = planned("2500", c.policy);
    EXPECT_EQ(out.find(said) != std::string::npos, !c.said.empty()) << out;
    EXPECT_NE(out.find(c.said), std::string::npos) << out;
    const Finished run = run_model({"-p", some_text(200), "-n", "2300", "--ignore-eos", "--kv", c.policy});
    EXPECT_EQ(run.err.find("ended by context") != std::string::npos, c.ends) << run.err;
  }
}

// In the same words, before it reads anything.
TEST(Memory, PlanSaysWhatRunWillRefuse) {
  struct Case {
    std::string policy;
    int tokens;
    std::string memory;  // for `run`
    std::string says;    // empty: it runs
  };
  for (const Case& c :
       {Case{"snapkv:budget=256", 2500, "", "holds all of a prompt until its end, and there is room for"},
        {"pyramidkv:budget=256", 2500, "", "holds all of a prompt until its end"},
        {"cake:budget=256", 2500, "", "holds all of a prompt until its end"},
        {"full", 2500, "", "keeps all of them, and there is room for 2048"},
        {"snapkv:budget=256", 2000, "", ""},
        {"full", 2000, "", ""},
        {"streaming:cap=100", 2500, "", ""}}) {
    SCOPED_TRACE(c.policy);
    const Arguments call = {"--ctx", std::to_string(c.tokens + 10), "--prompt", std::to_string(c.tokens), "--kv",
                            c.policy};
    const Json refusal = plan(call)["run_refuses"];
    Arguments table = {"plan", "-m", model_path()};
    table.insert(table.end(), call.begin(), call.end());
    const std::string out = run_program(table).out;
    const Finished run = run_model({"-p", some_text(c.tokens - 3), "-n", "1", "--kv", c.policy});
    if (c.says.empty()) {
      EXPECT_TRUE(refusal.is_null()) << refusal;
      EXPECT_EQ(out.find("run will refuse"), std::string::npos) << out;
      EXPECT_EQ(run.exit_code, 0) << run.err;
      continue;
    }
    ASSERT_TRUE(refusal.is_string());
    EXPECT_NE(refusal.get<std::string>().find(c.says), std::string::npos) << refusal;
    EXPECT_NE(out.find("\nrun will refuse this: " + refusal.get<std::string>() + "\n"), std::string::npos) << out;
    expect_refused(run, 1, refusal.get<std::string>() + " [--kv]");
    EXPECT_LT(run.cpu_seconds, 10);
  }
  EXPECT_TRUE(plan({"--ctx", "100000"})["run_refuses"].is_null()) << "the default forgets";
  const std::string small = plan({"--memory", "6MiB", "--kv", "streaming:cap=2000"})["run_refuses"];
  EXPECT_NE(small.find("more than this machine can give"), std::string::npos) << small;
  EXPECT_NE(plan({"--memory", "1MiB"})["run_refuses"].get<std::string>().find("the model's weights"),
            std::string::npos);
}

// Of policies by range that keep more than the trained context. The default one keeps as much as that.
TEST(Memory, PoliciesThatSeeBeyondTheTrainedContextAreNoted) {
  const std::string beyond = "kvasir: under 'streaming:sinks=4,window=2996' the model ";
  const Finished planned = run_program({"plan", "-m", model_path(), "--ctx", "2600", "--kv", "streaming:cap=3000"});
  EXPECT_EQ(planned.err, beyond + "would see 2600 tokens at once; it was trained for 2048\n");
  const Finished longer = run_program({"plan", "-m", model_path(), "--ctx", "9000", "--kv", "streaming:cap=3000"});
  EXPECT_EQ(longer.err, beyond + "would see 3001 tokens at once; it was trained for 2048\n");
  for (const Arguments& quiet : {Arguments{"--ctx", "9000"},
                                 {"--ctx", "2000", "--kv", "streaming:cap=3000"},
                                 {"--ctx", "9000", "--kv", "full"}}) {
    Arguments call = {"plan", "-m", model_path()};
    call.insert(call.end(), quiet.begin(), quiet.end());
    EXPECT_EQ(run_program(call).err, "");
  }
  const std::string up_to = beyond + "sees up to 3001 tokens at once; it was trained for 2048\n";
  const auto said = [&](const Arguments& more) {
    const std::string err = run_model(more).err;
    std::size_t times = 0;
    for (std::size_t at = err.find(up_to); at != std::string::npos; at = err.find(up_to, at + 1)) ++times;
    EXPECT_EQ(times > 0, err.find("trained for") != std::string::npos) << err;
    return times;
  };
  EXPECT_EQ(said({"-p", some_text(2500), "-n", "20", "--ignore-eos", "--kv", "streaming:cap=3000"}), 1u);
  EXPECT_EQ(said({"-p", some_text(2040), "-n", "20", "--ignore-eos", "--kv", "streaming:cap=3000"}), 1u);
  EXPECT_EQ(said({"-p", some_text(2040), "-n", "20", "--ignore-eos", "--kv", "streaming:cap=3000", "--samples", "2"}),
            1u);
  EXPECT_EQ(said({"-p", some_text(2500), "-n", "20", "--ignore-eos"}), 0u) << "the default";
  EXPECT_EQ(said({"-p", some_text(50), "-n", "20", "--kv", "streaming:cap=3000"}), 0u);
}

TEST(Memory, MoreThanTheMachineHasIsNoted) {
  const auto err = [](const std::string& memory) {
    return run_model({"-p", "Once", "-n", "1", "--kv-memory", memory}).err;
  };
  const std::string huge = err("1EiB");
  EXPECT_EQ(huge.find("kvasir: --kv-memory 1.0 EiB is more than the "), 0u) << huge;
  EXPECT_NE(huge.find("iB of memory available: the system may end a run that uses more\n"), std::string::npos) << huge;
  EXPECT_EQ(err("1MiB").find("available"), std::string::npos);
}

// Exactly: the number times the unit, rounded down.
TEST(Memory, SizesMayHaveDecimals) {
  struct Case {
    std::string text;
    std::uint64_t bytes;
  };
  for (const Case& c : {Case{"1.5GiB", 1610612736},
                        {"1.5GB", 1500000000},
                        {"0.1KiB", 102},
                        {"0.3MiB", 314572},
                        {".5 k", 500},
                        {"2.0MiB", 2097152},
                        {"0.0009765625KiB", 1},
                        {"0.00097656249KiB", 0},
                        {"1.999999999999999999999999999999999999TiB", 2199023255551},
                        {"0.9999999999999999999EiB", 1152921504606846975},
                        {"7.5EiB", 8646911284551352320u},
                        {"8EiB", 9223372036854775808u},
                        {"8.0000000000000000001EiB", 9223372036854775808u},
                        {"9223372036854775808", 9223372036854775808u},
                        {"512mib", 536870912},
                        {"3 Gi", 3221225472},
                        {"010", 10},
                        {"7b", 7}}) {
    // Where the size is 0, plan says nothing of it.
    const Json planned = plan({"--ctx", "1", "--memory", c.text});
    EXPECT_EQ(planned.value("memory", std::uint64_t{0}), c.bytes) << c.text;
  }
  for (const std::string text :
       {"1.5", "1.0", "1.5B", ".",     ".GiB",  "1.GiB", "1..5GiB", "1.5.GiB", "1,5GiB", "+1GiB",
        "-0",  "1e3", "0x10", "1GiBs", "1 G B", "GiB",   " ",       "1.5i",    "1ki b",  "\xff"}) {
    const Finished done = run_program({"plan", "-m", model_path(), "--memory", text});
    EXPECT_EQ(done.exit_code, 2) << text;
    EXPECT_NE(done.err.find("is no size; give bytes, or a unit with them"), std::string::npos) << text << done.err;
  }
  for (const std::string text :
       {"8.1EiB", "9223372036854775809", "16EiB", "18446744073709551616", "99999999999999999999999999999999"}) {
    const Finished done = run_program({"plan", "-m", model_path(), "--memory", text});
    EXPECT_EQ(done.exit_code, 2) << text;
    EXPECT_NE(done.err.find("--memory: '" + text + "' is too large; give 8EiB or less"), std::string::npos) << done.err;
  }
}

// One of something is not several.
TEST(Memory, SummariesCountInEnglish) {
  const Finished done = run_model({"-p", "Once", "-n", "1"});
  EXPECT_EQ(done.err.find(" 1 tokens"), std::string::npos) << done.err;
  EXPECT_NE(run_model({"-p", "Once", "-n", "1", "--samples", "2", "--seed", "1"}).out.find(", 1 token, ended by"),
            std::string::npos);
  EXPECT_EQ(run_program({"plan", "-m", model_path(), "--ctx", "1"}).out.find("1 token (1 of them"), 0u);
  EXPECT_NE(run_program({"bench", "-m", model_path(), "-t", "1", "--prefill", "8", "--decode", "0", "--repeat", "1"})
                .out.find(" on 1 thread,"),
            std::string::npos);
}

TEST(Memory, TextsBeyondTheTrainedContextAreRefusedWithTheReason) {
  struct Case {
    std::string policy, reason, advice;
  };
  for (const auto& [policy, reason, advice] :
       {Case{"full", "keeps all of them", "a policy that forgets, such as streaming"},
        Case{"h2o:budget=256,recent=128,pos=original", "keeps their positions",
             "a policy with pos=compact, such as streaming"},
        Case{"h2o:budget=256,recent=128,pos=original@demote=q4", "keeps their positions",
             "no demotion and a policy with compact positions"}})
    expect_refused(run_model({"-p", some_text(3000), "-n", "1", "--kv", policy}), 1,
                   "this model's maximum context length is 2048 tokens; the text has 3003, policy '" + policy + "' " +
                       reason + ", and there is room for 2048: use " + advice + ", or a shorter text [--kv]");
}

// Of the shape of Llama 3.1 70B in Q8_0: opened by mmap, of which nothing but the header is read.
TEST(Memory, FilesLargerThanMemoryAreOpenedAndPlanned) {
  RandomModelSpec spec;
  spec.layers = 80;
  spec.d = 8192;
  spec.heads = 64;
  spec.kv_heads = 8;
  spec.head_dim = 128;
  spec.ffn = 28672;
  spec.vocab = 128256;
  spec.tied = false;
  spec.dtype = "q8_0";
  spec.context = 131072;
  const TemporaryFile file(std::vector<std::byte>{});
  write_hollow_model(file.path(), spec);
  Json info = json_of({"info", file.path(), "--json"});
  EXPECT_GT(info["size_bytes"].get<std::uint64_t>(), std::uint64_t{70'000'000'000});
  // As many layers as no machine holds.
  const std::uint64_t available = info["memory"]["available_bytes"];
  const std::uint64_t of_layer = info["memory"]["weight_bytes"].get<std::uint64_t>() / 80;
  spec.layers = std::max(80, static_cast<int>(available / of_layer) + 20);
  if (spec.layers > 4096) GTEST_SKIP() << "this machine has " << available << " bytes of memory";
  write_hollow_model(file.path(), spec);
  info = json_of({"info", file.path(), "--json"});
  EXPECT_EQ(info["runs"], true) << info["why_not"];
  EXPECT_EQ(info["memory"]["fits"], false);
  const Json plan = json_of({"plan", "-m", file.path(), "--json", "--kv", "full"});
  EXPECT_GT(plan["weight_bytes"], available);
  EXPECT_EQ(plan["weight_bytes"], info["memory"]["weight_bytes"]);
  EXPECT_EQ(plan["kv_bytes"], info["memory"]["kv_bytes"]);
  EXPECT_EQ(plan["kv_bytes_per_token"], 2 * 2 * 128 * 8 * spec.layers);
  const Finished run = run_program({"run", "-m", file.path(), "-p", "x"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(run.err.find("kvasir plan"), std::string::npos) << run.err;
}

TEST(Memory, DefaultPolicyIsPlannedTheSame) {
  const Json run = run_json({"-p", some_text(2500), "-n", "20", "--ignore-eos"});
  const int prompt = run["prompt_tokens"];
  const Json planned = plan({"--ctx", std::to_string(prompt + 20), "--prompt", std::to_string(prompt)});
  EXPECT_EQ(run["kv"]["policy"], planned["policy"]);
  EXPECT_EQ(run["kv"]["bytes_peak"], planned["kv_bytes"]);
}

TEST(Memory, SmallerBudgetGivesTheLargestCapThatFits) {
  // Without a chunk, one is chosen that leaves the memory to tokens.
  for (const auto& [budget, chunk, chosen, least] :
       std::vector<std::tuple<std::uint64_t, std::string, std::string, int>>{{kMiB, "", "16", 360},
                                                                             {2 * kMiB, "", "32", 780},
                                                                             {3 * kMiB, "", "64", 1180},
                                                                             {3 * kMiB, "512", "512", 700}}) {
    SCOPED_TRACE(std::to_string(budget) + " " + chunk);
    Arguments call = {"-p", some_text(2500), "-n", "50", "--ignore-eos", "--kv-memory", std::to_string(budget)};
    if (!chunk.empty()) call.insert(call.end(), {"--chunk", chunk});
    const Json run = run_json(call);
    const std::string policy = run["kv"]["policy"];
    EXPECT_LE(run["kv"]["bytes_peak"].get<std::uint64_t>(), budget);
    EXPECT_EQ(run["kv"]["budget"], budget);
    EXPECT_EQ(run["finish_reason"], "length");
    int sinks = 0;
    int window = 0;
    ASSERT_EQ(std::sscanf(policy.c_str(), "streaming:sinks=%d,window=%d", &sinks, &window), 2) << policy;
    EXPECT_LT(sinks + window, 2048);
    EXPECT_EQ(run["kv"]["kept"], sinks + window);
    EXPECT_GE(window, least);
    const Json larger =
        plan({"--ctx", "80000", "--kv", "streaming:sinks=4,window=" + std::to_string(window + 1), "--chunk", chosen});
    EXPECT_GT(larger["kv_bytes"].get<std::uint64_t>(), budget) << "a larger window would have fitted";
  }
}

TEST(Memory, TooLittleIsOneClearLine) {
  const std::string no_page =
      " is less than one page for each KV head of each layer (<number> bytes); give it more [--kv-memory]";
  expect_all_refused(
      {{{"--kv-memory", "1"},
        2,
        "1 byte of KV memory holds no cache at all for this model (at least <number> are needed with chunk=16); give "
        "it more memory [--kv-memory]"},
       {{"--kv-memory", "100kB"},
        2,
        "100000 bytes of KV memory hold no cache at all for this model (at least <number> are needed with chunk=16); "
        "give it more memory [--kv-memory]"},
       {{"--kv-memory", "1MiB", "--chunk", "512"},
        2,
        "1048576 bytes of KV memory hold no cache at all for this model (at least <number> are needed with "
        "chunk=512); give it more memory, or a smaller chunk [--kv-memory, --chunk]"},
       {{"--kv-memory", "1MiB", "--kv", "streaming:sinks=4,window=1020"},
        2,
        "policy 'streaming:sinks=4,window=1020' needs <number> bytes of KV memory, and is given 1048576; give it more, "
        "or a smaller size [--kv-memory, --kv]"},
       {{"--kv-memory", "1MiB", "--kv", "h2o:budget=256,recent=128"},
        2,
        "policy 'h2o:budget=256,recent=128' needs <number> bytes of KV memory with a chunk of 256, and is given "
        "1048576; a chunk of <number> would fit, but it is part of what the policy decides; or give it more, or a "
        "smaller "
        "size [--kv-memory, --kv, --chunk]"},
       {{"--kv-memory", "70kB", "--kv", "full"}, 2, "a KV memory of 70000 bytes" + no_page}},
      run_arguments({"-p", "Once", "-n", "3"}));
}

TEST(Memory, FullEndsWithTheBudget) {
  const Json run = run_json({"-p", "Once", "--kv", "full", "--kv-memory", "1MiB", "--ignore-eos"});
  EXPECT_EQ(run["finish_reason"], "kv_memory");
  EXPECT_LE(run["kv"]["bytes_peak"].get<std::uint64_t>(), kMiB);
  EXPECT_EQ(run["kv"]["kept"], run["kv"]["seen"]);
  // Before anything is read, with all that it would take.
  for (const char* policy : {"full", "snapkv:budget=64"}) {
    const Finished prompt = run_model({"-p", some_text(1500), "-n", "5", "--kv", policy, "--kv-memory", "1MiB"});
    EXPECT_EQ(prompt.exit_code, 1);
    EXPECT_EQ(prompt.err.find("kvasir: the prompt has 1503 tokens, for which policy '"), 0u) << prompt.err;
    EXPECT_NE(prompt.err.find("but the KV memory has 1048576; give it more, or choose a policy that forgets, such "
                              "as streaming [--kv-memory, --kv]"),
              std::string::npos)
        << prompt.err;
  }
}

TEST(Memory, PlanSaysWhatFits) {
  const Json one = plan({"--ctx", "1000", "--kv", "full", "--memory", "1GiB"});
  EXPECT_TRUE(one["fits"].get<bool>());
  const std::uint64_t others = one["weight_bytes"].get<std::uint64_t>() + one["workspace_bytes"].get<std::uint64_t>();
  const std::uint64_t sequence = one["kv_bytes"].get<std::uint64_t>() + one["batch_bytes"].get<std::uint64_t>();
  EXPECT_EQ(one["total_bytes"].get<std::uint64_t>(), others + sequence);
  EXPECT_EQ(one["sequences_that_fit"].get<std::uint64_t>(), (1024 * kMiB - others) / sequence);
  EXPECT_FALSE(plan({"--memory", "1MiB"})["fits"].get<bool>());
  // Where the default policy does not fit, run would take a smaller one; a policy that was asked for stays.
  const Json small = plan({"--memory", "12MB"});
  EXPECT_FALSE(small["fits"].get<bool>());
  EXPECT_TRUE(small["cap_would_shrink"].get<bool>());
  EXPECT_FALSE(plan({"--memory", "12MB", "--kv", "streaming:cap=2048"})["cap_would_shrink"].get<bool>());
  EXPECT_FALSE(plan({"--memory", "1MiB"})["cap_would_shrink"].get<bool>()) << "there is none left for a cache";
  EXPECT_FALSE(plan({"--memory", "1GiB"})["cap_would_shrink"].get<bool>());
  EXPECT_NE(run_program({"plan", "-m", model_path(), "--memory", "12MB"}).out.find("--kv-memory"), std::string::npos);
  const Json three = plan({"--ctx", "1000", "--kv", "full", "--batch", "3"});
  EXPECT_EQ(three["kv_bytes"].get<std::uint64_t>(), 3 * one["kv_bytes"].get<std::uint64_t>());
  // The table says the same.
  const Finished table = run_program({"plan", "-m", model_path(), "--ctx", "1000", "--kv", "full"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_NE(table.out.find(std::to_string(one["kv_bytes"].get<std::uint64_t>())), std::string::npos) << table.out;
}

}  // namespace
}  // namespace kvasir::test
