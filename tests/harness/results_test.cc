// Scores, means and the log of results.
#include "harness/results.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

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
  QuestionResult result{.item = item, .cluster = item};
  result.scores["m"] = score;
  return result;
}

TEST(HarnessResults, ThreadsDoNotTellARunFromAnother) {
  using Json = nlohmann::ordered_json;
  const auto key = [](const char* header) { return run_key(Json::parse(header)); };
  EXPECT_EQ(key(R"({"subject": {"isa": "avx2", "threads": 1}, "task": "t"})"),
            key(R"({"subject": {"isa": "avx2", "threads": 8}, "task": "t"})"));
  EXPECT_NE(key(R"({"subject": {"isa": "avx2", "threads": 1}})"), key(R"({"subject": {"isa": "amx", "threads": 1}})"));
  EXPECT_EQ(key(R"({"task": "t"})"), Json::parse(R"({"task": "t"})"));
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

TaskSummary summary_of(const EvalTask& task, const std::vector<double>& scores, bool one_context = false) {
  std::vector<QuestionResult> results;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    results.push_back(with_score(i, scores[i]));
    results.back().scores = {{"longbench_v2_accuracy", scores[i]}};
    results.back().chance = 0.25;
    if (one_context) results.back().cluster = 0;
  }
  return summarize(task, results);
}

TEST(HarnessResults, AnswersAtChanceAreFound) {
  const auto task = parse_task(
      R"({"prompt": "x", "references": "a", "metrics": ["longbench_v2_accuracy", "exact_match"], "chance": 0.25})");
  ASSERT_TRUE(task.ok()) << task.status().message();
  const QuestionResult scored = score_answer(*task, item_of(*task, R"({"a": "B"})"), 0, 0, QuestionAnswer());
  EXPECT_EQ(scored.chance, 0.25);
  EXPECT_EQ(question_result_from_json(to_json(scored))->chance, 0.25);
  const TaskSummary guessed = summary_of(*task, {0, 0, 1, 0, 0, 1, 0, 0});
  EXPECT_EQ(guessed.judged, "longbench_v2_accuracy");
  EXPECT_EQ(guessed.chance, 0.25);
  EXPECT_EQ(to_json(guessed)["chance"], 0.25);
  EXPECT_EQ(above_chance(guessed), AboveChance::kNo);
  EXPECT_EQ(above_chance(summary_of(*task, {0, 0, 0, 0})), AboveChance::kNo);
  EXPECT_EQ(above_chance(summary_of(*task, {1, 1, 1, 0, 1, 1, 1, 1})), AboveChance::kYes);
  EXPECT_EQ(above_chance(summary_of(*task, {0, 1, 1, 0, 0})), AboveChance::kNo) << "within two standard errors";
  EXPECT_EQ(above_chance(summary_of(*task, {1, 1, 1}, true)), AboveChance::kUnknown);
  EXPECT_EQ(above_chance(summary_of(*task, {0, 0, 0}, true)), AboveChance::kUnknown);
  EXPECT_EQ(above_chance(TaskSummary()), AboveChance::kYes);
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
  EXPECT_TRUE(std::isnan(mean_of({7}).error)) << "one value says nothing of the spread";
  EXPECT_EQ(mean_of({}).count, 0);
  EXPECT_TRUE(std::isnan(mean_of({}).error));
}

// The sum over all pairs of a cluster, as Miller writes it, and the factor for few clusters.
double error_by_pairs(const std::vector<double>& values, const std::vector<std::size_t>& clusters) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double pairs = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t j = 0; j < values.size(); ++j)
      if (clusters[i] == clusters[j]) pairs += (values[i] - mean) * (values[j] - mean);
  const auto count = static_cast<double>(std::set<std::size_t>(clusters.begin(), clusters.end()).size());
  return std::sqrt(pairs / n / n * count / (count - 1));
}

TEST(HarnessResults, ErrorsAreClusteredByContext) {
  const std::vector<double> values = {1, 1, 0.5, 0, 0, 0.25, 1, 0};
  const std::vector<std::size_t> clusters = {4, 4, 4, 0, 0, 7, 7, 9};
  EXPECT_NEAR(mean_of(values, clusters).error, error_by_pairs(values, clusters), 1e-15);
  EXPECT_DOUBLE_EQ(mean_of(values, clusters).mean, mean_of(values).mean);
  EXPECT_GT(mean_of(values, clusters).error, mean_of(values).error);
  EXPECT_TRUE(std::isnan(mean_of({1, 0, 1}, {2, 2, 2}).error)) << "one context";
}

// Over many draws of contexts, whose questions have most of their spread in common, the error is the spread of the
// mean.
TEST(HarnessResults, ClusteredErrorsAreTheSpreadOfTheMean) {
  std::mt19937 random(7);
  const auto draw = [&] { return static_cast<double>(random()) / 4294967296.0 - 0.5; };
  double squares = 0, clustered = 0, alone = 0;
  constexpr int kDraws = 4000;
  for (int d = 0; d < kDraws; ++d) {
    std::vector<double> values;
    std::vector<std::size_t> clusters;
    for (std::size_t c = 0; c < 12; ++c) {
      const double common = draw();
      for (int q = 0; q < 5; ++q) {
        values.push_back(common + draw() / 3);
        clusters.push_back(c);
      }
    }
    const Mean mean = mean_of(values, clusters);
    squares += mean.mean * mean.mean / kDraws;  // the true mean is 0
    clustered += mean.error * mean.error / kDraws;
    alone += std::pow(mean_of(values).error, 2) / kDraws;
  }
  EXPECT_NEAR(clustered / squares, 1, 0.1);
  EXPECT_LT(alone / squares, 0.4);
}

TEST(HarnessResults, DifferencesAreClusteredByContext) {
  std::vector<QuestionResult> reference, run;
  std::vector<double> differences;
  std::vector<std::size_t> clusters;
  for (std::size_t i = 0; i < 9; ++i) {
    reference.push_back(with_score(i / 3, static_cast<double>(i % 4)));
    run.push_back(with_score(i / 3, static_cast<double>((i * i) % 5)));
    reference.back().question = run.back().question = i % 3;
    run.back().cluster = i / 3;
    differences.push_back(static_cast<double>((i * i) % 5) - static_cast<double>(i % 4));
    clusters.push_back(i / 3);
  }
  EXPECT_NEAR(paired_difference(run, reference, "m").error, error_by_pairs(differences, clusters), 1e-15);
  const TaskSummary summary = summarize(choices_task(), run);
  std::vector<double> scores;
  for (const QuestionResult& result : run) scores.push_back(result.scores.at("m"));
  EXPECT_NEAR(summary.metrics.at("m").error, error_by_pairs(scores, clusters), 1e-15);
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
  // As len(re.split(r"\s+", text)): the line end has an empty word behind it.
  const TaskItem item = item_of(*task, R"({"text": "one two  three\n"})");
  QuestionAnswer answer = scored({-6.0});
  answer.scores.front().bytes = 15;
  const QuestionResult result = score_answer(*task, item, 0, 0, answer);
  EXPECT_EQ(result.words, 4);
  const TaskSummary summary = summarize(*task, {result, result});
  EXPECT_DOUBLE_EQ(summary.metrics.at("word_perplexity").mean, std::exp(12.0 / 8));
  EXPECT_DOUBLE_EQ(summary.metrics.at("byte_perplexity").mean, std::exp(12.0 / 30));
  EXPECT_DOUBLE_EQ(summary.metrics.at("bits_per_byte").mean, 12.0 / 30 / std::log(2.0));
}

// Expected: python3 -c 'import re; print(len(re.split(r"\s+", TEXT)))'
TEST(HarnessResults, WordsAreCountedAsLmEvalDoes) {
  const auto task = parse_task(R"({"request": "rolling", "prompt": "{{ text }}"})");
  ASSERT_TRUE(task.ok());
  const auto words = [&](const char* text) {
    const auto item = make_item(*task, {{"text", text}}, 0, {});
    EXPECT_TRUE(item.ok()) << item.status().message();
    return score_answer(*task, *item, 0, 0, scored({-1.0})).words;
  };
  EXPECT_EQ(words("one two"), 2);
  EXPECT_EQ(words(" one two"), 3);
  EXPECT_EQ(words("\n one \t two \n"), 4);
  EXPECT_EQ(words("one\u00a0two\u3000three\u200bfour"), 3);
  EXPECT_EQ(words(" \n"), 2);
  EXPECT_EQ(words("one"), 1);
}

// What a server does not say is not in its results, which are read again from a log.
TEST(HarnessResults, WhatIsNotKnownIsLeftOut) {
  const EvalTask task = choices_task();
  const TaskItem item = item_of(task, R"({"q": "x", "c": ["a", "b"], "a": 1})");
  QuestionAnswer answer = scored({-1, -2});
  answer.prompt_tokens = 7;
  const QuestionResult server = score_answer(task, item, 0, 0, answer);
  const auto json = to_json(server);
  EXPECT_EQ(json.at("prompt_tokens"), 7);
  for (const char* field : {"left_out", "answer_tokens", "kept", "kv_bytes", "prompt_seconds"})
    EXPECT_FALSE(json.contains(field)) << field;
  const auto read = question_result_from_json(json);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(to_json(*read), json);
  const auto summary = to_json(summarize(task, {server}));
  EXPECT_EQ(summary.at("prompt_tokens"), 7);
  for (const char* field : {"shortened", "answer_tokens", "kept_mean", "kv_bytes_mean", "kv_bytes_max"})
    EXPECT_FALSE(summary.contains(field)) << field;
  answer.kept = 5;
  answer.left_out = 3;
  answer.kv_bytes = 100;
  const QuestionResult model = score_answer(task, item, 1, 0, answer);
  EXPECT_EQ(to_json(summarize(task, {model})).at("kept_mean"), 5.0);
  EXPECT_EQ(to_json(summarize(task, {model})).at("shortened"), 1);
  EXPECT_FALSE(to_json(summarize(task, {model, server})).contains("kept_mean")) << "of one of two";
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

// A run that meets a NaN can go on later: the question is asked again.
TEST_F(HarnessLog, HoldsAnAnswerThatIsNotFinite) {
  const EvalTask task = choices_task();
  const TaskItem item = item_of(task, R"({"q": "x", "c": ["a", "b"], "a": "A"})");
  {
    auto log = ResultLog::open(path_, {{"task", "x"}});
    ASSERT_TRUE(log.ok());
    ASSERT_TRUE(log->add(score_answer(task, item, 0, 0, scored({-1, std::nan("")}))).ok());
  }
  const auto log = ResultLog::open(path_, {{"task", "x"}});
  ASSERT_TRUE(log.ok()) << log.status().message();
  ASSERT_EQ(log->found().size(), 1U);
  EXPECT_EQ(log->found().front().error, "a log-likelihood is not finite");
}

TEST_F(HarnessLog, OneRunAtATimeWritesIt) {
  const auto first = ResultLog::open(path_, {{"task", "x"}});
  ASSERT_TRUE(first.ok());
  const auto second = ResultLog::open(path_, {{"task", "x"}});
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(second.status().message().find("another run is writing"), std::string::npos) << second.status().message();
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
