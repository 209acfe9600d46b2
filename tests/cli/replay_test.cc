// kvasir replay: its answers, its tables, and what it refuses.
#include <filesystem>

#include "cli/errors.h"
#include "replay/trace_file.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

void refuses(const Arguments& arguments, const std::string& message) {
  test::expect_refused(arguments, 2, message);
}

Arguments replay_arguments(const std::string& trace, const Arguments& more) {
  Arguments arguments = {"replay", "--trace", trace};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

class Replay : public ::testing::Test {
 protected:
  // Two layers of two heads that see everything alike, and one of other sizes.
  Folder folder_;
  std::string trace_ = folder_.make("b.npy", trace_bytes(2, 2, 10, uniform_weight));
  std::string other_ = folder_.make("a.npy", trace_bytes(1, 4, 6, uniform_weight));
};

TEST_F(Replay, OneTraceAndPolicyGiveTheLayers) {
  const Json json = json_of(replay_arguments(trace_, {"--policy", "streaming:window=3,sinks=1,every=2", "--json"}));
  EXPECT_EQ(json["trace"], trace_);
  EXPECT_EQ(json["policy"], "streaming:sinks=1,window=3,every=2");
  EXPECT_EQ(json["tokens"], 10);
  EXPECT_EQ(json["query_heads"], 2);
  EXPECT_EQ(json["kv_heads"], 2);
  ASSERT_EQ(json["layers"].size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const Json& layer = json["layers"][static_cast<std::size_t>(i)];
    EXPECT_EQ(layer["layer"], i);
    EXPECT_EQ(layer["final"], (Json{0, 7, 8, 9}));
    // 1 2 3 4 5 4 5 4 5 4
    EXPECT_DOUBLE_EQ(layer["kept_mean"].get<double>(), 3.7);
    EXPECT_EQ(layer["kept_max"], 5);
    EXPECT_EQ(layer["prunes"], 3);
    EXPECT_NEAR(layer["recall"].get<double>(), (6 + 5 / 7. + 6 / 8. + 5 / 9. + 6 / 10.) / 10, 1e-6);
    EXPECT_FALSE(layer.contains("heads"));
  }
}

TEST_F(Replay, SeveralRunsGiveOneTable) {
  const Arguments policies = {"--policy", "full", "--policy", "window:size=4"};
  const Json json = [&] {
    Arguments arguments = replay_arguments(folder_.path(), policies);
    arguments.emplace_back("--json");
    return json_of(arguments);
  }();
  const std::vector<std::pair<std::string, std::string>> expected = {
      {other_, "full"}, {other_, "window:size=4"}, {trace_, "full"}, {trace_, "window:size=4"}};
  ASSERT_EQ(json["runs"].size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(json["runs"][i]["trace"], expected[i].first);
    EXPECT_EQ(json["runs"][i]["policy"], expected[i].second);
    EXPECT_EQ(json["runs"][i]["layers"].size(), i < 2 ? 1u : 2u);
  }
  const Finished text = run_program(replay_arguments(folder_.path(), policies));
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(std::ranges::count(text.out, '\n'), 5);
  for (const char* part : {"recall", "prunes", "a.npy", "b.npy", "window:size=4", "1.0000"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  // A folder is a table, even with one trace and one policy in it.
  std::filesystem::remove(other_);
  EXPECT_EQ(json_of(replay_arguments(folder_.path(), {"--policy", "full", "--json"}))["runs"].size(), 1u);
}

TEST_F(Replay, TextShowsWhatIsKept) {
  const Finished text = run_program(replay_arguments(trace_, {"--policy", "streaming:sinks=1,window=3"}));
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  EXPECT_NE(text.out.find(" 0 7-9\n"), std::string::npos) << text.out;
}

TEST_F(Replay, APromptIsOneChunkOrMany) {
  const auto run = [&](const Arguments& more) {
    Arguments arguments = replay_arguments(trace_, {"--policy", "tova:budget=4", "--json"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json_of(arguments);
  };
  const Json one_by_one = run({});
  const Json whole = run({"--prefill", "8"});
  const Json chunked = run({"--prefill", "8", "--chunk", "3", "--kv-heads", "1"});
  EXPECT_EQ(one_by_one["prefill"], 0);
  EXPECT_EQ(whole["prefill"], 8);
  EXPECT_EQ(whole["chunk"], 8);
  EXPECT_EQ(chunked["chunk"], 3);
  EXPECT_EQ(chunked["kv_heads"], 1);
  // The rows of a prompt see all of it; so the larger the chunk, the more.
  EXPECT_LT(one_by_one["layers"][0]["recall"], chunked["layers"][0]["recall"]);
  EXPECT_LT(chunked["layers"][0]["recall"], whole["layers"][0]["recall"]);
  for (const Json& json : {one_by_one, whole, chunked}) EXPECT_EQ(json["layers"][1]["kept_max"], 4);
}

TEST_F(Replay, HeadsThatDecideForThemselves) {
  const Json json =
      json_of(replay_arguments(other_, {"--policy", "tova:budget=2,heads=independent", "--kv-heads", "2", "--json"}));
  const Json& layer = json["layers"][0];
  EXPECT_FALSE(layer.contains("final"));
  ASSERT_EQ(layer["heads"].size(), 2u);
  for (const Json& head : layer["heads"]) {
    EXPECT_EQ(head["final"], (Json{4, 5})) << "of equal masses the younger stay";
    EXPECT_EQ(head["kept_max"], 2);
  }
  EXPECT_EQ(layer["prunes"], 4);
  const Finished text =
      run_program(replay_arguments(other_, {"--policy", "tova:budget=2,heads=independent", "--kv-heads", "2"}));
  EXPECT_NE(text.out.find("head"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("4-5"), std::string::npos) << text.out;
}

TEST_F(Replay, APolicyThatNeverActsIsNamed) {
  const auto told = [&](const Arguments& more) { return run_program(replay_arguments(folder_.path(), more)).err; };
  const Arguments snapkv = {"--policy", "snapkv:budget=3,window=2"};
  const std::string idle = told({"--policy", "full", "--policy", "tova:budget=2", snapkv[0], snapkv[1]});
  EXPECT_TRUE(
      idle.starts_with("kvasir: 'snapkv:budget=3,window=2,kernel=15' dropped nothing before the last pass; a "
                       "policy that acts when a prompt ends needs one (--prefill)"))
      << idle;
  EXPECT_EQ(std::ranges::count(idle, '\n'), 1) << idle;
  EXPECT_EQ(told({snapkv[0], snapkv[1], "--prefill", "5"}), "");
  EXPECT_NE(run_program(replay_arguments(trace_, snapkv)).err, "");
}

TEST_F(Replay, BadFiles) {
  const std::string bad = folder_.path("bad");
  const auto refused = [&](const std::string& content, const std::string& what) {
    refuses(replay_arguments(folder_.make("bad", content), {"--policy", "full"}), "'" + bad + "'" + what);
  };
  const std::string no_numpy = " is not a NumPy file (it does not begin with \\x93NUMPY); write it with numpy.save";
  refused("", no_numpy);
  refused("some text", no_numpy);
  const std::string sound = trace_bytes(2, 2, 10, uniform_weight);
  refused(sound.substr(0, 30), " is truncated: it ends inside its header");
  refused(sound.substr(0, sound.size() - 1), " is truncated: 1599 bytes of weights instead of 1600");
  refused(sound + "x", " is damaged: 1 byte too many behind the array");
  refused(npy_bytes(npy_dictionary("(2, 3, 4)"), std::vector<float>(24)),
          " has the shape (2, 3, 4); attention weights have [layers, heads, T, T]");
  refused(npy_bytes(npy_dictionary("(1, 1, 2, 3)"), std::vector<float>(6)),
          " has the shape (1, 1, 2, 3); attention weights have [layers, heads, T, T]");
  refused(npy_bytes(npy_dictionary("(1, 1, 1, 1)", "'<f8'"), {0, 1}),
          " holds elements of type '<f8'; float32 ('<f4') is needed: save array.astype('<f4')");
  refused(npy_bytes(npy_dictionary("(1, 1, 1, 1)", "'<f4'", "True"), {1}),
          " has fortran_order True; C order is needed: save numpy.ascontiguousarray(array)");
  refused(npy_bytes(npy_dictionary("(1, 1, 2049, 2049)"), {1}),
          " has 2049 tokens (shape (1, 1, 2049, 2049)); a trace has at most 2048");
  refused(npy_bytes(npy_dictionary("(4611686018427387904, 4, 4, 4)"), {1}),
          " is damaged: its shape (4611686018427387904, 4, 4, 4) is more than a file can hold");
  refused(npy_bytes(npy_dictionary("(1, 1, 2, 2)"), {1, 0, -1, 2}),
          ": the weight at [0, 0, 1, 0] is -1; weights of a softmax are 0 or more");
  refused(npy_bytes(npy_dictionary("(1, 1, 2, 2)"), {.5, .5, .5, .5}),
          ": the weight at [0, 0, 0, 1] is 0.5; token 0 cannot see a later one");
  refuses(replay_arguments(folder_.path("none"), {"--policy", "full"}),
          "cannot open '" + folder_.path("none") + "': No such file or directory");
  refuses(replay_arguments("/dev/null", {"--policy", "full"}), "'/dev/null' is not a regular file");
}

TEST_F(Replay, BadFolders) {
  const std::string bad = folder_.make("c.npy", "not one");
  refuses(replay_arguments(folder_.path(), {"--policy", "full"}),
          "'" + bad + "' is not a NumPy file (it does not begin with \\x93NUMPY); write it with numpy.save");
  const Folder empty;
  const std::string nothing = "the folder '" + empty.path() + "' holds no trace: no file's name ends in .npy";
  refuses(replay_arguments(empty.path(), {"--policy", "full"}), nothing);
  empty.make("notes.txt", "x");
  empty.make("a.npy.partial", "x");
  refuses(replay_arguments(empty.path(), {"--policy", "full"}), nothing);
}

TEST_F(Replay, BadCommandLines) {
  for (const auto& [more, message] : std::vector<std::pair<Arguments, std::string>>{
           {{}, "--policy is required" + see("replay")},
           {{"--policy"}, "--policy needs a value" + see("replay")},
           {{"--policy", ""}, "policy spec '': the name of a policy is missing; the policies are: " + policy_names()},
           {{"--policy", "nope"}, unknown_policy("nope")},
           {{"--policy", "full", "--policy", "window:size=0"},
            "policy 'window': size=0 must be a whole number, 1 to 2^40"},
           {{"--policy", "recompute"}, kEvaluationOnly},
           {{"--policy", "full", "--prefill", "-1"},
            "--prefill -1 must be from 0 to the 10 tokens of '" + trace_ + "'"},
           {{"--policy", "full", "--prefill", "11"},
            "--prefill 11 must be from 0 to the 10 tokens of '" + trace_ + "'"},
           {{"--policy", "full", "--prefill", "x"}, "--prefill: 'x' is not a whole number (0 or more)" + see("replay")},
           {{"--policy", "full", "--chunk", "4"}, "--chunk cuts the prompt that --prefill names; give --prefill too"},
           {{"--policy", "full", "--prefill", "4", "--chunk", "0"}, "--chunk=0 must be at least 1"},
           {{"--policy", "full", "--kv-heads", "0"}, "--kv-heads=0 must be at least 1"},
           {{"--policy", "full", "--kv-heads", "3"},
            "the 2 query heads of '" + trace_ + "' cannot be shared among 3 KV heads; give a divisor [--kv-heads]"},
           {{"--policy", "full", "--trace", "twice"}, "cannot open 'twice': No such file or directory"},
           {{"--policy", "full", "extra"}, "the argument 'extra' is not expected" + see("replay")}})
    refuses(replay_arguments(trace_, more), message);
  refuses({"replay", "--policy", "full"}, "--trace is required" + see("replay"));
  // Every trace must fit, before any is replayed.
  refuses(replay_arguments(folder_.path(), {"--policy", "full", "--prefill", "7"}),
          "--prefill 7 must be from 0 to the 6 tokens of '" + other_ + "'");
}

TEST_F(Replay, FullDisk) {
  const Finished done = run_program(replay_arguments(trace_, {"--policy", "full"}), {.output_file = "/dev/full"});
  expect_refused(done, 1, "cannot write to standard output: No space left on device");
}

TEST_F(Replay, InterruptsStopItSoon) {
  const std::string big = folder_.make("big", trace_bytes(1, 2, 1024, uniform_weight));
  Arguments arguments = replay_arguments(big, {"--json"});
  for (int i = 0; i < 20000; ++i) arguments.insert(arguments.end(), {"--policy", "tova:budget=512"});
  for (const int signal : {SIGINT, SIGTERM}) {
    const Finished done =
        run_program(arguments, {.interrupt = Interrupt::kCaught, .interrupt_after = 0.5, .signal = signal});
    EXPECT_EQ(done.signal, signal == SIGINT ? SIGINT : 0) << "exit code " << done.exit_code;
    EXPECT_EQ(done.exit_code, signal == SIGINT ? -1 : 1) << "signal " << done.signal;
    EXPECT_LT(done.after_signal, kSoon);
    EXPECT_EQ(done.err, "kvasir: stopped\n");
    EXPECT_EQ(done.out, "");
  }
}

TEST(ReplayExample, IsWhatWasPublished) {
  KVASIR_SHARED_OR_SKIP(trace, "traces/example.npy");
  const Json json = json_of({"replay", "--policy", "streaming:sinks=2,window=10,every=4", "--trace", trace, "--json"});
  EXPECT_EQ(json["layers"][0]["final"], (Json{0, 1, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47}));
  EXPECT_NEAR(json["layers"][0]["recall"].get<double>(), 0.7694927188907362, 1e-12);
}

// Rows of gpt-oss sum to less than 1: the command that `record` prints says so.
TEST_F(Replay, TakesWhatIsRecordedOfAModelWithSinks) {
  const std::string model = source_dir() + "/tests/reference/originals/gpt_oss.gguf";
  const std::string text = folder_.make("text", std::string(120, 'a'));
  const std::string trace = folder_.path() + "/sinks.npy";
  const Finished recorded = run_program({"record", "-m", model, "-f", text, "--tokens", "60", "-t", "1", "-o", trace});
  ASSERT_EQ(recorded.exit_code, 0) << recorded.err;
  EXPECT_NE(recorded.out.find(" --sinks\n"), std::string::npos) << recorded.out;
  EXPECT_EQ(run_program(replay_arguments(trace, {"--policy", "full", "--kv-heads", "2", "--sinks"})).exit_code, 0);
  const Finished refused = run_program(replay_arguments(trace, {"--policy", "full", "--kv-heads", "2"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("with --sinks"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace kvasir::test
