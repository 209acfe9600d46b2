// Runs that end early and go on, by a subject that answers from a list.
#include "harness/task_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/status.h"

namespace kvasir::test {
namespace {

// Answers in reverse order, and stops or fails where it is told to.
class ListSubject : public Subject {
 public:
  nlohmann::ordered_json identity() const override { return {}; }
  Status ask(std::span<const TaskItem* const> items, const AskOptions& options, const OnAnswer& on_answer,
             const std::function<bool()>&) override {
    asked += items.size();
    last = options;
    for (std::size_t i = items.size(); i-- > 0;)
      for (std::size_t q = 0; q < items[i]->questions.size(); ++q) {
        if (answers_left-- == 0) return make_status(StatusCode::kIo, "the power went out");
        QuestionAnswer answer;
        if (fails) answer.status = make_status(StatusCode::kInvalidArgument, "not now");
        answer.text = items[i]->questions[q].references.front();
        if (!on_answer(i, q, std::move(answer))) return Status(StatusCode::kCancelled, "");
      }
    return {};
  }
  std::size_t asked = 0;
  int answers_left = 1000;
  bool fails = false;
  AskOptions last;
};

class HarnessRun : public testing::Test {
 protected:
  HarnessRun() : path_(testing::TempDir() + "kvasir-harness-run-" + std::to_string(::getpid())) {
    std::filesystem::remove(path_);
    auto task = parse_task(R"({"prompt": "{{ q }}", "turns": "turns", "references": "a", "metrics": ["exact_match"],
                               "stop": ["x"], "max_tokens": 7, "min_tokens": 2, "truncation": "start"})");
    EXPECT_TRUE(task.ok()) << task.status().message();
    task_ = *task;
    for (std::size_t i = 0; i < 6; ++i) {
      nlohmann::ordered_json record{{"turns", {{{"q", "?"}, {"a", "yes"}}, {{"q", "!"}, {"a", "no"}}}}};
      auto item = make_item(task_, record, i, {});
      EXPECT_TRUE(item.ok()) << item.status().message();
      items_.push_back(*item);
    }
  }
  ~HarnessRun() override { std::filesystem::remove(path_); }

  Result<std::vector<QuestionResult>> run(ListSubject& subject) {
    auto log = ResultLog::open(path_, {{"run", 1}});
    EXPECT_TRUE(log.ok()) << log.status().message();
    return run_task(subject, {.task = &task_, .items = items_, .log = &*log});
  }

  std::string path_;
  EvalTask task_;
  std::vector<TaskItem> items_;
};

TEST_F(HarnessRun, GoesOnWhereItEnded) {
  ListSubject subject;
  subject.answers_left = 5;  // items 5 and 4, and one question of item 3
  const auto broken = run(subject);
  EXPECT_EQ(broken.status().message(), "the power went out");
  ListSubject rest;
  const auto results = run(rest);
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ(rest.asked, 4U) << "items 0 to 3";
  ASSERT_EQ(results->size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ((*results)[i].item, i / 2);
    EXPECT_EQ((*results)[i].question, i % 2);
    EXPECT_EQ((*results)[i].scores.at("exact_match"), 1);
  }
  ListSubject none;
  ASSERT_TRUE(run(none).ok());
  EXPECT_EQ(none.asked, 0U);
}

TEST_F(HarnessRun, AsksAgainWhatFailed) {
  ListSubject broken;
  broken.fails = true;
  const auto failed = run(broken);
  ASSERT_TRUE(failed.ok());
  EXPECT_EQ(failed->front().error, "not now");
  EXPECT_EQ(failed->front().scores.at("exact_match"), 0);
  ListSubject mended;
  const auto results = run(mended);
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(mended.asked, 6U);
  for (const QuestionResult& result : *results) EXPECT_EQ(result.scores.at("exact_match"), 1);
  ListSubject none;
  ASSERT_TRUE(run(none).ok());
  EXPECT_EQ(none.asked, 0U);
}

TEST_F(HarnessRun, AsksByTheTasksOwnOptions) {
  ListSubject subject;
  ASSERT_TRUE(run(subject).ok());
  EXPECT_EQ(subject.last.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(subject.last.max_tokens, 7);
  EXPECT_EQ(subject.last.min_tokens, 2);
  EXPECT_EQ(subject.last.truncation, Truncation::kStart);
}

TEST_F(HarnessRun, AsksAsAChatUnlessTheTaskIsPlainText) {
  for (const bool chat : {true, false}) {
    ListSubject subject;
    task_.chat = chat;
    TaskRun run{.task = &task_, .items = items_};
    run.ask.chat = true;
    ASSERT_TRUE(run_task(subject, run).ok());
    EXPECT_EQ(subject.last.chat, chat);
  }
}

TEST_F(HarnessRun, StopsWhenItIsTold) {
  ListSubject subject;
  std::size_t most = 0;
  TaskRun stopped{.task = &task_, .items = items_};
  stopped.progress = [&](std::size_t done, std::size_t total) {
    most = std::max(most, done);
    EXPECT_EQ(total, 12U);
    return done < 3;
  };
  EXPECT_EQ(run_task(subject, stopped).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(most, 3U);
}

}  // namespace
}  // namespace kvasir::test
