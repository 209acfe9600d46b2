// The model that comes with the project: it is what its card says, finds a fact in its context, and no longer does once
// the policy has dropped it.
#include <filesystem>

#include "cli/program.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

TEST(BundledModel, IsWhatItsCardSays) {
  const Json info = json_of({"info", bundled_model(), "--json"});
  EXPECT_EQ(info["parameters"], 15'735'168);
  const Json& metadata = info["metadata"];
  EXPECT_EQ(metadata["general.license"], "apache-2.0");
  EXPECT_EQ(metadata["llama.context_length"], 8192);
  EXPECT_EQ(metadata["llama.embedding_length"], 384);
  EXPECT_EQ(metadata["llama.block_count"], 8);
  EXPECT_EQ(metadata["llama.feed_forward_length"], 1024);
  EXPECT_EQ(metadata["llama.attention.head_count"], 8);
  EXPECT_EQ(metadata["llama.attention.head_count_kv"], 4);
  EXPECT_LT(std::filesystem::file_size(bundled_model()), 20'000'000u);
}

TEST(BundledModel, RecallsWhatItsCacheHolds) {
  const Json found = json_of({"eval", "needle", "-m", bundled_model(), "-f",
                              source_dir() + "/examples/the-lamplighter.txt", "--json", "--lengths", "1200", "--depths",
                              "0.1,0.5,0.95", "--trials", "2", "--kv", "full", "--kv", "streaming:cap=400"});
  const Json& full = found["runs"][0];
  EXPECT_GE(full["exact"].get<double>(), 0.8) << full;  // of 6
  const Json& streaming = found["runs"][1];
  EXPECT_EQ(streaming["cells"][0]["exact"], 0.0) << streaming;
  EXPECT_EQ(streaming["cells"][1]["exact"], 0.0) << streaming;
  EXPECT_GE(streaming["cells"][2]["exact"].get<double>(), 0.5) << streaming;
}

}  // namespace
}  // namespace kvasir::test
