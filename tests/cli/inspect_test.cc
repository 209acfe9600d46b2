// kvasir inspect: its answers and its report, and what it refuses.
#include <filesystem>
#include <iterator>

#include "cli/program.h"
#include "replay/trace_file.h"

namespace kvasir::test {
namespace {

class InspectCommand : public ::testing::Test {
 protected:
  Arguments arguments(const Arguments& more) const {
    Arguments all = {"inspect", "-m", model_path(), "-t", "1", "-f", text_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Folder folder_;
  std::string text_ = folder_.make("text", some_text(300));
};

TEST_F(InspectCommand, JsonHasTheFieldsOfTheManual) {
  for (const std::string policy : {"lethe:tau=20,start=64", "h2o:budget=48,recent=16,heads=independent"}) {
    const Json json = json_of(arguments({"--tokens", "150", "--kv", policy, "--prefill", "90", "--chunk", "32", "--top",
                                         "16", "--bins", "10", "--json"}));
    EXPECT_EQ(json["model"], model_path());
    EXPECT_EQ(json["codec"], "f16");
    EXPECT_EQ(json["tokens"], 150);
    EXPECT_EQ(json["query_heads"], 6);
    EXPECT_EQ(json["kv_heads"], 3);
    EXPECT_EQ(json["prefill"], 90);
    EXPECT_EQ(json["chunk"], 32);
    EXPECT_EQ(json["top"], 16);
    EXPECT_EQ(json["reference"], 89);
    EXPECT_EQ(json["positions"].size(), 10u);
    EXPECT_EQ(json["positions"][0], 7.0);
    EXPECT_EQ(json["lags"].size(), 7u);
    ASSERT_EQ(json["layers"].size(), 6u);
    for (std::size_t i = 0; i < 6; ++i) {
      const Json& layer = json["layers"][i];
      EXPECT_EQ(layer["layer"], i);
      EXPECT_GT(layer["hoyer_mean"], 0.0);
      EXPECT_LT(layer["hoyer_mean"], 1.0);
      for (const char* curve : {"hoyer", "seen", "drift"}) EXPECT_EQ(layer[curve].size(), 10u);
      EXPECT_TRUE(layer["drift"][0].is_null());
      EXPECT_GT(layer["drift"][9], 0.0);
      EXPECT_EQ(layer["locality"].size(), 7u);
      EXPECT_EQ(layer["by_chance"].size(), 7u);
      ASSERT_EQ(layer["head_similarity"].size(), 3u);
      EXPECT_EQ(layer["head_similarity"][1][1], 1.0);
      EXPECT_EQ(layer["head_similarity"][0][2], layer["head_similarity"][2][0]);
      EXPECT_EQ(layer["query_head_similarity"].size(), 6u);
      EXPECT_EQ(layer.contains("heads"), policy.front() == 'h');
      const Json& final = policy.front() == 'h' ? layer["heads"][2]["final"] : layer["final"];
      EXPECT_EQ(final.back(), 149);
    }
  }
}

TEST_F(InspectCommand, TableAndReport) {
  const std::string page = folder_.path("page.html");
  const Finished done =
      run_program(arguments({"--tokens", "200", "--kv", "streaming:sinks=2,window=60", "--report", page}));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.err, "");
  EXPECT_NE(done.out.find("sparsity"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("\n    5 "), std::string::npos) << done.out;
  const std::string html = bytes_of(page);
  for (const char* part : {"<!DOCTYPE html>", "Attention under streaming:sinks=2,window=60", "Sparsity over time",
                           "Drift and locality", "Heads of a layer", "What is kept"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("src=\"http"), std::string::npos);
  // All of a text shorter than the default; of a longer one the front.
  EXPECT_LT(json_of(arguments({"--json"}))["tokens"], 1024);
  EXPECT_EQ(json_of({"inspect", "-m", model_path(), "-f", folder_.make("longer", some_text(1500)), "--kv",
                     "window:size=64", "--json"})["tokens"],
            1024);
}

TEST_F(InspectCommand, BadCommandLines) {
  for (const auto& [more, part] :
       std::vector<std::pair<Arguments, std::string>>{{{"--tokens", "-1"}, "--tokens -1"},
                                                      {{"--tokens", "16385"}, "2 to 16384"},
                                                      {{"--tokens", "2000"}, "not the 2000 asked for"},
                                                      {{"--kv", "nope"}, "unknown retention policy"},
                                                      {{"--kv", "recompute"}, "evaluation only"},
                                                      {{"--chunk", "8"}, "give --prefill"},
                                                      {{"--prefill", "-8"}, "from 0 to"},
                                                      {{"--top", "0"}, "--top 0"},
                                                      {{"--bins", "99999"}, "--bins 99999"},
                                                      {{"--matrix", "-3"}, "--matrix -3"},
                                                      {{"--layers", "0,6"}, "layers 0 to 5"},
                                                      {{"--report", ""}, "needs a file"},
                                                      {{"--report", folder_.path("no/page")}, "No such file"}}) {
    const Finished done = run_program(arguments(more));
    EXPECT_NE(done.exit_code, 0);
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
    EXPECT_EQ(done.out, "");
  }
}

}  // namespace
}  // namespace kvasir::test
