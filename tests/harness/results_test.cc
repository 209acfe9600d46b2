// Scores, means and the log of results.
#include "harness/results.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace kvasir::test {
namespace {

EvalTask choices_task() {
  auto task = parse_task(R"({"request": "choices", "prompt": "{{ q }}", "choices": "c", "answer": "{{ a }}"})");
  EXPECT_TRUE(task.ok()) << task.status().message();
  return *task;
}

TaskItem item_of(const EvalTask& task, const char* record) {
  auto item = make_item(task, nlohmann::ordered_json::parse(record), 0, {});
  EXPECT_TRUE(item.ok()) << item.status().message();
  return *item;
}

QuestionAnswer scored(std::initializer_list<double> log_likelihoods) {
  QuestionAnswer answer;
  for (const double value : log_likelihoods)
    answer.scores.push_back({.log_likelihood = value, .tokens = 1, .bytes = 1});
  return answer;
}

QuestionResult with_score(std::size_t item, double score) {
  QuestionResult result{.item = item};
  result.scores["m"] = score;
  return result;
}

TEST(HarnessResults, TheLikeliestChoiceIsTheAnswer) {
  const EvalTask task = choices_task();
  const TaskItem item = item_of(task, R"({"q": "x", "c": ["a", "bbbb"], "a": 1})");
  // By log-likelihood the short one, by its share of a byte the long one.
  const QuestionResult result = score_answer(task, item, 0, 0, scored({-2.0, -4.0}));
  EXPECT_EQ(result.scores.at("acc"), 0);
  EXPECT_EQ(result.scores.at("acc_norm"), 1);
  EXPECT_EQ(result.chance, 0.5);
  // The first of equal ones.
  EXPECT_EQ(score_answer(task, item, 0, 0, scored({-2.0, -2.0})).scores.at("acc"), 0);
}

TEST(HarnessResults, AnAnswerThatFailedIsWrong) {
  const EvalTask task = choices_task();
  const TaskItem item = item_of(task, R"({"q": "x", "c": ["a", "b"], "a": "A"})");
  QuestionAnswer failed;
  failed.status = Status(StatusCode::kResourceExhausted, "too long");
  const QuestionResult result = score_answer(task, item, 0, 0, failed);
  EXPECT_EQ(result.error, "too long");
  EXPECT_EQ(result.scores.at("acc"), 0);
  EXPECT_EQ(summarize(task, {result}).failed, 1);
}

// Formulas written out, on numbers whose figures are known.
TEST(HarnessResults, MeansAndErrors) {
  const Mean mean = mean_of({1, 0, 0, 1, 1});
  EXPECT_DOUBLE_EQ(mean.mean, 0.6);
  EXPECT_DOUBLE_EQ(mean.error, std::sqrt((3 * 0.16 + 2 * 0.36) / 4 / 5));
  EXPECT_EQ(mean.count, 5);
  EXPECT_EQ(mean_of({7}).error, 0);
  EXPECT_EQ(mean_of({}).count, 0);
}

TEST(HarnessResults, DifferencesArePairedByQuestion) {
  const std::vector<QuestionResult> reference = {with_score(0, 1), with_score(1, 0), with_score(2, 5)};
  const std::vector<QuestionResult> run = {with_score(1, 0.5), with_score(0, 1.5), with_score(9, 100)};
  const Mean difference = paired_difference(run, reference, "m");
  EXPECT_DOUBLE_EQ(difference.mean, 0.5);
  EXPECT_DOUBLE_EQ(difference.error, 0);
  EXPECT_EQ(difference.count, 2);
  EXPECT_EQ(paired_difference(run, reference, "other").count, 0);
}

TEST(HarnessResults, RollingPerplexitiesAreThoseOfTheSums) {
  const auto task = parse_task(R"({"request": "rolling", "prompt": "{{ text }}"})");
  ASSERT_TRUE(task.ok());
  const TaskItem item = item_of(*task, R"({"text": "one two  three\n"})");
  QuestionAnswer answer = scored({-6.0});
  answer.scores.front().bytes = 15;
  const QuestionResult result = score_answer(*task, item, 0, 0, answer);
  EXPECT_EQ(result.words, 3);
  const TaskSummary summary = summarize(*task, {result, result});
  EXPECT_DOUBLE_EQ(summary.metrics.at("word_perplexity").mean, std::exp(2.0));
  EXPECT_DOUBLE_EQ(summary.metrics.at("byte_perplexity").mean, std::exp(12.0 / 30));
  EXPECT_DOUBLE_EQ(summary.metrics.at("bits_per_byte").mean, 12.0 / 30 / std::log(2.0));
}

// Bits do not depend on the order in which answers came.
TEST(HarnessResults, SummariesDoNotDependOnOrder) {
  const EvalTask task = choices_task();
  const TaskItem item = item_of(task, R"({"q": "x", "c": ["a", "b", "c"], "a": 2})");
  std::vector<QuestionResult> results;
  for (std::size_t i = 0; i < 40; ++i)
    results.push_back(score_answer(task, item, i, 0, scored({-0.1 * static_cast<double>(i % 7), -0.3, -0.35})));
  const auto json = to_json(summarize(task, results));
  std::reverse(results.begin(), results.end());
  std::swap(results[3], results[30]);
  EXPECT_EQ(to_json(summarize(task, results)).dump(), json.dump());
}

class HarnessLog : public testing::Test {
 protected:
  HarnessLog() : path_(testing::TempDir() + "kvasir-harness-log-" + std::to_string(::getpid())) { clean(); }
  ~HarnessLog() override { clean(); }
  void clean() const { std::filesystem::remove(path_); }
  std::string content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string path_;
};

TEST_F(HarnessLog, GoesOnBehindALineThatWasNotWrittenWhole) {
  const nlohmann::ordered_json header{{"task", "x"}};
  {
    auto log = ResultLog::open(path_, header);
    ASSERT_TRUE(log.ok()) << log.status().message();
    EXPECT_TRUE(log->found().empty());
    ASSERT_TRUE(log->add(with_score(0, 0.1)).ok());
    ASSERT_TRUE(log->add(with_score(1, 1.0 / 3)).ok());
  }
  const std::string whole = content();
  std::filesystem::resize_file(path_, whole.size() - 5);
  auto log = ResultLog::open(path_, header);
  ASSERT_TRUE(log.ok()) << log.status().message();
  ASSERT_EQ(log->found().size(), 1U);
  EXPECT_EQ(log->found().front().scores.at("m"), 0.1);
  ASSERT_TRUE(log->add(with_score(1, 1.0 / 3)).ok());
  EXPECT_EQ(content(), whole);
}

TEST_F(HarnessLog, OfAnotherRunIsRefused) {
  ASSERT_TRUE(ResultLog::open(path_, {{"task", "x"}}).ok());
  const auto other = ResultLog::open(path_, {{"task", "y"}});
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.status().message().find("another run"), std::string::npos);
}

TEST_F(HarnessLog, ThatIsDamagedNamesItsLine) {
  {
    auto log = ResultLog::open(path_, {{"task", "x"}});
    ASSERT_TRUE(log.ok());
  }
  std::ofstream(path_, std::ios::app) << "{\"item\": true}\n";
  const auto damaged = ResultLog::open(path_, {{"task", "x"}});
  EXPECT_EQ(damaged.status().code(), StatusCode::kDataLoss);
  EXPECT_NE(damaged.status().message().find("line 2"), std::string::npos) << damaged.status().message();
}

}  // namespace
}  // namespace kvasir::test
