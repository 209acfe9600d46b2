// Grids from files.
#include "harness/matrix.h"

#include <gtest/gtest.h>

namespace kvasir::test {
namespace {

TEST(HarnessMatrix, MultipliesPoliciesBudgetsAndCodecs) {
  const auto matrix =
      parse_matrix(R"({"policies": ["full", "snapkv:budget={budget},recent=8", "cascade:size={budget},n=2"],
      "budgets": [64, 128], "codecs": ["f16", "q4"], "reading": "context-first",
      "tasks": [{"task": "needle", "tokens": 500, "count": 3, "depths": [0, 0.5]},
                {"perplexity": "a.txt", "window": 100, "windows": 2, "prefill": 50},
                {"task": "mine.json", "data": "/abs/x.jsonl", "shots": 0}]})",
                   "/grids");
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  std::vector<std::string> settings;
  for (const CacheSetting& each : matrix->settings) settings.push_back(each.policy + " " + each.codec);
  EXPECT_EQ(settings, (std::vector<std::string>{
                          "full f16", "full q4", "snapkv:budget=64,recent=8 f16", "snapkv:budget=64,recent=8 q4",
                          "snapkv:budget=128,recent=8 f16", "snapkv:budget=128,recent=8 q4", "cascade:size=64,n=2 f16",
                          "cascade:size=64,n=2 q4", "cascade:size=128,n=2 f16", "cascade:size=128,n=2 q4"}));
  EXPECT_EQ(matrix->reading, Reading::kContextFirst);
  ASSERT_EQ(matrix->tasks.size(), 3U);
  EXPECT_EQ(matrix->tasks[0].data.tokens, 500);
  EXPECT_EQ(matrix->tasks[0].data.depths, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(matrix->tasks[1].text, "/grids/a.txt");
  EXPECT_EQ(matrix->tasks[2].task, "/grids/mine.json");
  EXPECT_EQ(matrix->tasks[2].data.file, "/abs/x.jsonl");
  EXPECT_EQ(matrix->tasks[2].data.shots, 0);
}

TEST(HarnessMatrix, WrongGridsNameWhatIsWrong) {
  const auto refusal = [](const char* text) {
    const auto matrix = parse_matrix(text, "");
    EXPECT_FALSE(matrix.ok()) << text;
    return matrix.status().message();
  };
  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  has(refusal("[]"), "JSON object");
  has(refusal("{"), "JSON object");
  has(refusal(R"({"tasks": []})"), "'tasks'");
  has(refusal(R"({"policys": ["full"], "tasks": [{"task": "x"}]})"), "'policys'");
  has(refusal(R"({"policies": "full", "tasks": [{"task": "x"}]})"), "'policies'");
  has(refusal(R"({"policies": ["tova:budget={budget}"], "tasks": [{"task": "x"}]})"), "'budgets'");
  has(refusal(R"({"tasks": [{"task": "x", "perplexity": "y"}]})"), "either 'task' or 'perplexity'");
  has(refusal(R"({"tasks": [{"task": "x", "limit": -3}]})"), "'limit' must be a whole number from 0 to ");
  has(refusal(R"({"budgets": [-1], "tasks": [{"task": "x"}]})"),
      "'budgets' must be a list of whole numbers from 0 to ");
  has(refusal(R"({"tasks": [{"task": "x"}], "tasks": [{"task": "y"}]})"), "'tasks' twice");
  has(refusal(R"({"tasks": [{"task": "x", "count": 1, "count": 2}]})"), "'count' twice");
  has(refusal(R"({"tasks": [{"perplexity": "x", "window": 8, "prefill": 8}]})"), "'prefill'");
  has(refusal(R"({"tasks": [{"perplexity": "x", "window": 100, "prefill": 99}]})"), "'prefill'");
  has(refusal(R"({"budgets": [2.5], "tasks": [{"task": "x"}]})"), "'budgets'");
  has(refusal(R"({"budgets": [-5], "tasks": [{"task": "x"}]})"), "'budgets'");
  has(refusal(R"({"budgets": [1e300], "tasks": [{"task": "x"}]})"), "'budgets'");
  has(refusal(R"({"policies": [], "tasks": [{"task": "x"}]})"), "0 cells");
  has(refusal(R"({"budgets": [64], "tasks": [{"task": "x"}]})"), "'budgets' changes nothing");
  has(refusal(R"({"policies": ["full", "full"], "tasks": [{"task": "x"}]})"), "'full' with f16 twice");
  has(refusal(
          R"({"policies": ["tova:budget=64", "tova:budget={budget}"], "budgets": [32, 64], "tasks": [{"task": "x"}]})"),
      "'tova:budget=64' with f16 twice");
  has(refusal(R"({"share_prompts": true, "reading": "context-first", "tasks": [{"task": "x"}]})"), "'share_prompts'");
  has(refusal(R"({"share_prompts": 1, "tasks": [{"task": "x"}]})"), "'share_prompts'");
  has(refusal(R"({"share_prompts": true, "tasks": [{"perplexity": "x"}]})"), "a perplexity has no prompts to share");
  has(refusal(R"({"reading": "backwards", "tasks": [{"task": "x"}]})"), "backwards");
}

}  // namespace
}  // namespace kvasir::test
