// kvasir record: its answers, what replay makes of its file, and what it refuses.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/errors.h"
#include "replay/trace_file.h"

namespace kvasir::test {
namespace {

class RecordCommand : public ::testing::Test {
 protected:
  Arguments arguments(const Arguments& more) const {
    Arguments all = {"record", "-m", model_path(), "-t", "1", "-f", text_, "-o", out_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  void expect_refused(const Arguments& all, const std::string& message) const {
    test::expect_refused(all, 2, message);
    expect_nothing_written();
  }

  void expect_nothing_written() const {
    EXPECT_FALSE(std::filesystem::exists(out_));
    EXPECT_FALSE(std::filesystem::exists(out_ + ".partial"));
  }

  Folder folder_;
  std::string text_ = folder_.make("text", some_text(300));
  std::string out_ = folder_.path("out.npy");
};

Json layers_of(const Json& json) {
  Json layers = Json::array();
  for (const Json& layer : json["layers"]) {
    Json ids = {{"layer", layer["layer"]}};
    if (layer.contains("final")) ids["final"] = layer["final"];
    if (layer.contains("heads"))
      for (const Json& head : layer["heads"]) ids["heads"].push_back(head["final"]);
    layers.push_back(ids);
  }
  return layers;
}

TEST_F(RecordCommand, ReplayAgrees) {
  for (const std::string policy : {"h2o:budget=48,recent=16,sinks=4", "tova:budget=40,heads=independent"})
    for (const bool prompt : {false, true}) {
      const Json recorded = [&] {
        Arguments more = {"--tokens", "150", "--kv", policy, "--json"};
        if (prompt) more.insert(more.end(), {"--prefill", "90", "--chunk", "32"});
        return json_of(arguments(more));
      }();
      EXPECT_EQ(recorded["model"], model_path());
      EXPECT_EQ(recorded["trace"], out_);
      EXPECT_EQ(recorded["policy"], policy);
      EXPECT_EQ(recorded["codec"], "f16");
      EXPECT_EQ(recorded["tokens"], 150);
      EXPECT_EQ(recorded["query_heads"], 6);
      EXPECT_EQ(recorded["kv_heads"], 3);
      EXPECT_EQ(recorded["prefill"], prompt ? 90 : 0);
      EXPECT_EQ(recorded["chunk"], prompt ? 32 : 0);
      EXPECT_EQ(recorded["bytes"], 6 * 6 * 150 * 150 * 4);
      EXPECT_GT(recorded["kept_max"], 40);
      ASSERT_EQ(recorded["layers"].size(), 6u);

      Arguments replay = {"replay", "--policy", policy, "--trace", out_, "--kv-heads", "3", "--json"};
      if (prompt) replay.insert(replay.end(), {"--prefill", "90", "--chunk", "32"});
      const Json replayed = json_of(replay);
      EXPECT_EQ(replayed["query_heads"], 6);
      EXPECT_EQ(layers_of(replayed), layers_of(recorded));
      EXPECT_EQ(recorded["layers"][1].contains("heads"), policy.front() == 't');
      EXPECT_NE(layers_of(recorded)[0], layers_of(recorded)[5]);
    }
}

TEST_F(RecordCommand, WithKeysTheFileHasThemAndReplayItsKvHeads) {
  const Json recorded = json_of(arguments({"--tokens", "64", "--with-keys", "--json"}));
  const std::uint64_t floats = recorded["bytes"].get<std::uint64_t>() / 4;
  // 6 layers, 6 query heads, 3 KV heads: weights, queries, keys, values, rotations; scale, magnitude, frequencies.
  const std::uint64_t dim = (floats - 6 * 6 * 64 * 64 - 6 * 3 * 64) / (6 * (6 + 2 * 3) * 64);
  EXPECT_EQ(floats, 6 * 6 * 64 * 64 + 6 * 3 * 64 + 6 * (6 + 2 * 3) * 64 * dim + 6 * (2 + dim / 2));
  EXPECT_EQ(std::filesystem::file_size(out_), floats * 4 + 6 * 128);
  EXPECT_EQ(json_of({"replay", "--policy", "tova:budget=40", "--trace", out_, "--json"})["kv_heads"], 3);
}

TEST_F(RecordCommand, SaysWhatItDoes) {
  const Finished done = run_program(arguments({"--tokens", "64", "--kv", "streaming:sinks=2,window=20"}));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.error_lines(), 1) << done.err;
  EXPECT_NE(done.err.find("will have 576.0 KiB"), std::string::npos) << done.err;
  EXPECT_NE(done.out.find("\n    5     22  0-1 44-63\n"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("kvasir replay --policy streaming:sinks=2,window=20 --trace " + out_ + " --kv-heads 3\n"),
            std::string::npos)
      << done.out;
  EXPECT_EQ(std::filesystem::file_size(out_), 6 * 6 * 64 * 64 * 4 + 128);
  // All of a short text, over what was there before.
  EXPECT_EQ(json_of(arguments({"--json"}))["policy"], "full");
}

TEST_F(RecordCommand, BadCommandLines) {
  expect_all_refused(
      {
          {{"--tokens", "-1"}, 2, "--tokens -1 must be from 1 to 2048, or 0: all of the text"},
          {{"--tokens", "2049"}, 2, "--tokens 2049 must be from 1 to 2048, or 0: all of the text"},
          {{"--tokens", "2000"},
           2,
           "the text has 303 tokens, not the 2000 asked for; give a longer text or a smaller --tokens"},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--kv", ""}, 2, "--kv: a policy needs a name; 'kvasir policies' lists them" + see("record")},
          {{"--kv", "recompute"}, 2, kEvaluationOnly},
          {{"--chunk", "8"}, 2, "--chunk cuts the prompt that --prefill names; give --prefill too"},
          {{"--prefill", "8", "--chunk", "5000"}, 2, "--chunk 5000 is outside 1 to 4096 tokens (0: the policy's own)"},
          {{"--prefill", "-8"}, 2, "--prefill -8 must be from 0 to the 303 tokens"},
          {{"--tokens", "20", "--prefill", "21"}, 2, "--prefill 21 must be from 0 to the 20 tokens"},
          {{"--kv-memory", "10kB"}, 2, "a KV memory of 10000 bytes" + kNoPage},
      },
      arguments({}));
  expect_nothing_written();
  expect_refused({"record", "-m", model_path(), "-f", text_}, "--out is required" + see("record"));
  expect_refused({"record", "-m", model_path(), "-o", out_}, "--file is required" + see("record"));
  expect_refused({"record", "-m", model_path(), "-f", folder_.make("longer", some_text(4000)), "-o", out_},
                 "the text has 4003 tokens, and a trace at most 2048; say how many with --tokens");
  expect_refused({"record", "-m", model_path(), "-f", folder_.make("empty", ""), "-o", out_},
                 "the text is empty; give some text");
  expect_refused({"record", "-m", model_path(), "-f", folder_.path("none"), "-o", out_},
                 "cannot open '" + folder_.path("none") + "': No such file or directory");
}

TEST_F(RecordCommand, PathsThatCannotBeWritten) {
  for (const auto& [path, message] : std::vector<std::pair<std::string, std::string>>{
           {folder_.path("no/such/folder.npy"),
            "cannot create '" + folder_.path("no/such/folder.npy.partial") + "': No such file or directory"},
           {folder_.path(), "'" + folder_.path() + "' is not a regular file"},
           {"/dev/full", "'/dev/full' is not a regular file"}})
    expect_refused({"record", "-m", model_path(), "-f", text_, "-o", path}, message);
}

// Neither a signal nor half a file.
TEST_F(RecordCommand, AFileThatMayGrowNoMore) {
  const Finished done = run_program(arguments({}), {.file_size_limit = 100000});
  EXPECT_EQ(done.exit_code, 1) << "signal " << done.signal << done.err;
  EXPECT_NE(done.err.find("File too large; make room"), std::string::npos) << done.err;
  EXPECT_EQ(done.error_lines(), 1) << done.err;
  expect_nothing_written();
}

TEST_F(RecordCommand, InterruptsLeaveNothing) {
  const std::string longer = folder_.make("longer", some_text(4000));
  for (const int signal : {SIGINT, SIGTERM}) {
    Arguments all = {"record",   "-m",   model_path(), "-t",   "1",  "--isa", "generic",
                     "--tokens", "2048", "-f",         longer, "-o", out_};
    const Finished done = run_program(all, {.interrupt = Interrupt::kCaught, .interrupt_after = 0.5, .signal = signal});
    EXPECT_EQ(done.signal, signal == SIGINT ? SIGINT : 0) << "exit code " << done.exit_code;
    EXPECT_EQ(done.exit_code, signal == SIGINT ? -1 : 1) << "signal " << done.signal;
    EXPECT_LT(done.after_signal, kSoon);
    EXPECT_NE(done.err.find("stopped"), std::string::npos) << done.err;
    EXPECT_EQ(done.out, "");
    expect_nothing_written();
  }
}

// A prompt that is the whole text leaves no token that could see what was dropped at its end: that is said, and not
// that a prompt is missing.
TEST(Record, APromptWithNothingBehindItIsSaid) {
  const Folder folder;
  const std::string text = folder.make("text", some_text(200));
  const auto err = [&](const char* prefill) {
    return run_program({"record", "-m", model_path(), "-f", text, "--tokens", "100", "--prefill", prefill, "--kv",
                        "snapkv:budget=40", "-o", folder.path("trace")})
        .err;
  };
  EXPECT_NE(err("100").find("no token comes behind the prompt, at whose end it acts: a smaller --prefill leaves some"),
            std::string::npos)
      << err("100");
  EXPECT_EQ(err("80").find("dropped nothing"), std::string::npos) << err("80");
  EXPECT_NE(err("0").find("needs one (--prefill)"), std::string::npos) << err("0");
}

}  // namespace
}  // namespace kvasir::test
