// kvasir inspect: its answers and its report, and what it refuses.
#include <filesystem>
#include <iterator>

#include "cli/errors.h"
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
  expect_all_refused(
      {
          {{"--tokens", "-1"}, 2, "--tokens -1 must be from 2 to 16384, or 0: all of the text"},
          {{"--tokens", "16385"}, 2, "--tokens 16385 must be from 2 to 16384, or 0: all of the text"},
          {{"--tokens", "2000"},
           2,
           "the text has 303 tokens, not the 2000 asked for; give a longer text or a smaller --tokens"},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--kv", "recompute"}, 2, kEvaluationOnly},
          {{"--chunk", "8"}, 2, "--chunk cuts the prompt that --prefill names; give --prefill too"},
          {{"--prefill", "-8"}, 2, "--prefill -8 must be from 0 to the 303 tokens"},
          {{"--top", "0"}, 2, "--top 0 must be from 1 to 4096"},
          {{"--bins", "99999"}, 2, "--bins 99999 must be from 1 to 1024"},
          {{"--bins", "999999999999"}, 2, "--bins: '999999999999' is out of range (1 to 1024)" + see("inspect")},
          {{"--matrix", "-3"}, 2, "--matrix -3 must be from 1 to 1024"},
          {{"--layers", "0,6"}, 2, "--layers 6: the model has layers 0 to 5"},
          {{"--report", ""}, 2, "--report: a report needs a file to be written to" + see("inspect")},
          {{"--report", folder_.path("no/page")},
           2,
           "cannot create '" + folder_.path("no/page.partial") + "': No such file or directory"},
      },
      arguments({}));
}

}  // namespace
}  // namespace kvasir::test
