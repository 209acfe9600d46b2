// kvasir record: its answers, what replay makes of its file, and what it refuses.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/program.h"
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

  void expect_refused(const Arguments& all, const std::string& part, int code = 2) const {
    SCOPED_TRACE(::testing::PrintToString(all));
    const Finished done = run_program(all);
    EXPECT_EQ(done.exit_code, code) << "signal " << done.signal;
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
    EXPECT_EQ(done.out, "");
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
  for (const auto& [more, part] :
       std::vector<std::pair<Arguments, std::string>>{{{"--tokens", "-1"}, "--tokens -1"},
                                                      {{"--tokens", "2049"}, "1 to 2048"},
                                                      {{"--tokens", "2000"}, "not the 2000 asked for"},
                                                      {{"--kv", "nope"}, "unknown retention policy"},
                                                      {{"--kv", ""}, "needs a name"},
                                                      {{"--kv", "recompute"}, "evaluation only"},
                                                      {{"--chunk", "8"}, "give --prefill"},
                                                      {{"--prefill", "8", "--chunk", "5000"}, "chunk"},
                                                      {{"--prefill", "-8"}, "from 0 to"},
                                                      {{"--tokens", "20", "--prefill", "21"}, "from 0 to the 20"},
                                                      {{"--kv-memory", "10kB"}, "KV memory"}}) {
    const Finished done = run_program(arguments(more));
    EXPECT_EQ(done.exit_code, part == "KV memory" ? 1 : 2) << done.err;
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
    expect_nothing_written();
  }
  expect_refused({"record", "-m", model_path(), "-f", text_}, "--out");
  expect_refused({"record", "-m", model_path(), "-o", out_}, "--file");
  expect_refused({"record", "-f", text_, "-o", out_}, "--model");
  const std::string longer = folder_.make("longer", some_text(4000));
  expect_refused({"record", "-m", model_path(), "-f", longer, "-o", out_}, "say how many with --tokens");
  expect_refused({"record", "-m", model_path(), "-f", folder_.path("none"), "-o", out_}, "No such file");
}

TEST_F(RecordCommand, PathsThatCannotBeWritten) {
  for (const std::string& path : {folder_.path("no/such/folder.npy"), folder_.path(), std::string("/dev/full")})
    expect_refused({"record", "-m", model_path(), "-f", text_, "-o", path}, path);
}

// Neither a signal nor half a file.
TEST_F(RecordCommand, AFileThatMayGrowNoMore) {
  const Finished done = run_program(arguments({}), {.file_size_limit = 100000});
  EXPECT_EQ(done.exit_code, 1) << "signal " << done.signal << done.err;
  EXPECT_NE(done.err.find("File too large"), std::string::npos) << done.err;
  EXPECT_EQ(done.error_lines(), 1) << done.err;
  expect_nothing_written();
}

TEST_F(RecordCommand, InterruptsLeaveNothing) {
  const std::string longer = folder_.make("longer", some_text(4000));
  for (const int signal : {SIGINT, SIGTERM}) {
    Arguments all = {"record",   "-m",   model_path(), "-t",   "1",  "--isa", "generic",
                     "--tokens", "2048", "-f",         longer, "-o", out_};
    const Finished done = run_program(all, {.interrupt_after = 1.5, .signal = signal, .interrupt_silent = true});
    EXPECT_EQ(done.exit_code, 1) << "signal " << done.signal;
    EXPECT_LT(done.seconds, 2);
    EXPECT_NE(done.err.find("stopped"), std::string::npos) << done.err;
    EXPECT_EQ(done.out, "");
    expect_nothing_written();
  }
}

}  // namespace
}  // namespace kvasir::test
