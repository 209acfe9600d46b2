// What an engine answers to tasks, against sequences that are run one by one.
#include "harness/engine_subject.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "eval/scoring.h"
#include "harness/prompt_tokens.h"
#include "harness/task_run.h"
#include "support/engine_fixture.h"
#include "support/random_model.h"
#include "support/real_model.h"
#include "support/shared_data.h"
#include "tasks/golden_text.h"

namespace kvasir::test {
namespace {

constexpr int kItems = 5;

std::string model_file() {
  return source_dir() + "/tests/data/kvasir-mini-3m-q8_0.gguf";
}

std::unique_ptr<Engine> open_engine(std::uint64_t kv_memory, const std::string& file = model_file()) {
  EngineOptions options;
  options.model = file;
  options.threads = 1;
  options.kv_memory = kv_memory;
  auto opened = Engine::open(options);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return std::move(*opened);
}

EvalTask task_of(const char* definition) {
  auto task = parse_task(definition);
  EXPECT_TRUE(task.ok()) << task.status().message();
  return *task;
}

const char* const kChoices = R"({"request": "choices", "context": "{{ story }}\n", "prompt": "So {{ who }} was ",
                                 "choices": "c", "answer": "{{ a }}"})";
const char* const kGenerate = R"({"request": "generate", "context": "{{ story }}\n", "prompt": "So {{ who }}",
                                  "references": "a", "metrics": ["exact_match"], "max_tokens": 9, "stop": ["\n\n"]})";
const char* const kRolling = R"({"request": "rolling", "prompt": "{{ story }}"})";

std::vector<TaskItem> items_of(const EvalTask& task, bool turns = false) {
  std::vector<TaskItem> items;
  for (int i = 0; i < kItems; ++i) {
    std::string story = "Once upon a time there was a fox who lived near a river. ";
    for (int s = 0; s < 6 + 5 * i; ++s) story += "Day " + std::to_string(s * i) + " was as long as the others. ";
    nlohmann::ordered_json record{{"story", story},
                                  {"who", i % 2 == 0 ? "the fox" : "nobody"},
                                  {"a", i % 3},
                                  {"c", {"happy", "very old and tired", "here"}}};
    if (turns) record["questions"] = {{{"who", "the fox"}}, {{"who", "the river"}}, {{"who", "the day"}}};
    auto item = make_item(task, record, static_cast<std::size_t>(i), {});
    EXPECT_TRUE(item.ok()) << item.status().message();
    items.push_back(std::move(*item));
  }
  return items;
}

class HarnessEngine : public testing::TestWithParam<const char*> {
 protected:
  HarnessEngine() {
    engine_ = open_engine(std::uint64_t{1} << 26);
    model_ = load(model_file(), {.threads = 1});
    subject_ = make_engine_subject(engine_.get(), {}, model_->tokenizer->vocabulary().bos);
  }

  std::vector<QuestionResult> ask(const EvalTask& task, const std::vector<TaskItem>& items, Reading reading,
                                  int parallel = 4) {
    TaskRun run{.task = &task, .items = items};
    run.ask.policy = GetParam();
    run.ask.reading = reading;
    run.ask.parallel = parallel;
    auto results = run_task(*subject_, run);
    EXPECT_TRUE(results.ok()) << results.status().message();
    for (const QuestionResult& result : *results) EXPECT_EQ(result.error, "");
    return *results;
  }

  ItemTokens tokens_of(const EvalTask& task, const TaskItem& item, Reading reading) {
    AskOptions options;
    options.request = task.request;
    options.reading = reading;
    options.max_tokens = task.max_tokens;
    auto tokens = item_tokens(engine_->text(), item, options, engine_->model().context);
    EXPECT_TRUE(tokens.ok()) << tokens.status().message();
    return *tokens;
  }

  static double sum(const std::vector<TokenScore>& scores) {
    double total = 0;
    for (const TokenScore& score : scores) total += score.logprob;
    return total;
  }

  // Reads tokens into the session as a request does.
  void read(const std::shared_ptr<Session>& session, const Tokens& tokens) {
    RequestOptions request;
    request.session = session;
    request.tokens = tokens;
    request.generate.max_tokens = 0;
    ASSERT_TRUE(engine_->submit(request).ok());
    while (engine_->unfinished() > 0) ASSERT_TRUE(engine_->poll().ok());
  }

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<LoadedModel> model_;
  std::unique_ptr<Subject> subject_;
};

TEST_P(HarnessEngine, ScoresChoicesAsSequencesDo) {
  const EvalTask task = task_of(kChoices);
  const std::vector<TaskItem> items = items_of(task);
  const std::vector<QuestionResult> results = ask(task, items, Reading::kTogether);
  ASSERT_EQ(results.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const QuestionTokens tokens = tokens_of(task, items[i], Reading::kTogether).questions[0];
    ASSERT_EQ(results[i].answer.scores.size(), 3U);
    for (std::size_t c = 0; c < 3; ++c) {
      const auto runner = new_runner(model_, GetParam());
      const auto expected = score_answer(*runner, tokens.prompt, tokens.texts[c], 256, {});
      ASSERT_TRUE(expected.ok()) << expected.status().message();
      EXPECT_DOUBLE_EQ(results[i].answer.scores[c].log_likelihood, sum(*expected)) << i << ' ' << c;
      EXPECT_EQ(results[i].answer.scores[c].tokens, std::ssize(tokens.texts[c]));
      EXPECT_EQ(results[i].answer.scores[c].greedy,
                std::ranges::all_of(*expected, [](const TokenScore& score) { return score.likeliest; }));
    }
  }
}

TEST_P(HarnessEngine, GeneratesWhatASessionGenerates) {
  const EvalTask task = task_of(kGenerate);
  const std::vector<TaskItem> items = items_of(task);
  const std::vector<QuestionResult> results = ask(task, items, Reading::kTogether);
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto session = engine_->new_session({.policy = GetParam()});
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE((*session)->read(items[i].context + items[i].questions[0].prompt).ok());
    GenerateOptions options;
    options.max_tokens = 9;
    options.stop = {"\n\n"};
    options.sampling.temperature = 0;
    const auto expected = (*session)->generate(options, {});
    ASSERT_TRUE(expected.ok());
    EXPECT_EQ(results[i].answer.text, expected->text);
    EXPECT_EQ(results[i].answer.kept, expected->kv.kept_max);
  }
}

// A text that would stop an answer begins it: with `min_tokens` it does not count there.
TEST_P(HarnessEngine, AStopAtTheBeginningMayBePassedOver) {
  EvalTask task = task_of(kGenerate);
  task.stop.clear();
  std::vector<TaskItem> items = items_of(task);
  items.resize(1);
  const std::string text = ask(task, items, Reading::kTogether).front().answer.text;
  ASSERT_FALSE(text.empty());
  task.stop = {text};
  EXPECT_EQ(ask(task, items, Reading::kTogether).front().answer.text, "");
  task.min_tokens = 1;
  EXPECT_EQ(ask(task, items, Reading::kTogether).front().answer.text, text);
}

TEST_P(HarnessEngine, ReadsAContextBeforeItsQuestions) {
  const EvalTask task = task_of(kGenerate);
  const EvalTask turns = task_of(R"({"request": "generate", "context": "{{ story }}\n", "prompt": "So {{ who }}",
      "turns": "questions", "references": "a", "metrics": ["exact_match"], "max_tokens": 9})");
  const std::vector<TaskItem> items = items_of(turns, true);
  for (const Reading reading : {Reading::kContextFirst, Reading::kConversation}) {
    const std::vector<QuestionResult> results = ask(turns, items, reading);
    ASSERT_EQ(results.size(), items.size() * 3);
    for (std::size_t i = 0; i < items.size(); ++i) {
      auto made = engine_->new_session({.policy = GetParam()});
      ASSERT_TRUE(made.ok());
      const std::shared_ptr<Session> session = std::move(*made);
      const ItemTokens of_item = tokens_of(turns, items[i], reading);
      read(session, of_item.context);
      for (std::size_t q = 0; q < 3; ++q) {
        const QuestionTokens& tokens = of_item.questions[q];
        auto fork = session->fork();
        ASSERT_TRUE(fork.ok());
        const std::shared_ptr<Session> asked = std::move(*fork);
        read(asked, tokens.prompt);
        GenerateOptions options;
        options.max_tokens = 9;
        options.sampling.temperature = 0;
        const auto expected = asked->generate(options, {});
        ASSERT_TRUE(expected.ok());
        EXPECT_EQ(results[i * 3 + q].answer.text, expected->text) << reading_name(reading) << ' ' << i << ' ' << q;
        if (reading != Reading::kConversation) continue;
        Tokens golden = tokens.prompt;
        golden.insert(golden.end(), tokens.golden.begin(), tokens.golden.end());
        read(session, golden);
      }
    }
  }
}

// Questions on one context are asked some at a time, however many there are.
TEST_P(HarnessEngine, ManyQuestionsOnOneContext) {
  const EvalTask task = task_of(R"({"request": "generate", "context": "{{ story }}\n", "prompt": "{{ who }}? ",
      "turns": "questions", "references": "a", "metrics": ["exact_match"], "max_tokens": 3})");
  nlohmann::ordered_json record{{"story", "The fox was old."}, {"a", "x"}};
  for (int i = 0; i < 100; ++i)
    record["questions"].push_back({{"who", std::string(1, static_cast<char>('a' + i % 7))}});
  const auto item = make_item(task, record, 0, {});
  ASSERT_TRUE(item.ok()) << item.status().message();
  for (const Reading reading : {Reading::kContextFirst, Reading::kConversation}) {
    std::size_t most = 0;
    TaskRun run{.task = &task, .items = std::span(&*item, 1)};
    run.ask.policy = GetParam();
    run.ask.reading = reading;
    run.progress = [&](std::size_t, std::size_t) {
      most = std::max(most, static_cast<std::size_t>(engine_->unfinished()));
      return true;
    };
    const auto results = run_task(*subject_, run);
    ASSERT_TRUE(results.ok()) << results.status().message();
    ASSERT_EQ(results->size(), 100U);
    for (const QuestionResult& result : *results) {
      ASSERT_EQ(result.error, "");
      if (reading == Reading::kContextFirst) {
        EXPECT_EQ(result.answer.text, (*results)[result.question % 7].answer.text) << result.question;
      }
    }
    EXPECT_GT(most, 1U);
    EXPECT_LE(most, 33U);
  }
}

TEST_P(HarnessEngine, ScoresWholeTexts) {
  const EvalTask task = task_of(kRolling);
  const std::vector<TaskItem> items = items_of(task);
  const std::vector<QuestionResult> results = ask(task, items, Reading::kTogether);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto tokens = engine_->text().encode(items[i].questions[0].prompt, true);
    ASSERT_TRUE(tokens.ok());
    const auto runner = new_runner(model_, GetParam());
    const auto expected = score_text(*runner, *tokens, 256, {});
    ASSERT_TRUE(expected.ok());
    EXPECT_DOUBLE_EQ(results[i].answer.scores[0].log_likelihood, sum(*expected));
    EXPECT_EQ(results[i].answer.scores[0].tokens, std::ssize(*tokens) - 1);
    EXPECT_EQ(results[i].answer.scores[0].bytes, std::ssize(items[i].questions[0].prompt));
    EXPECT_GT(results[i].words, 10);
  }
}

// However many items are under way at a time.
TEST_P(HarnessEngine, BitsDoNotDependOnWhatRunsBeside) {
  const EvalTask task = task_of(kChoices);
  const std::vector<TaskItem> items = items_of(task);
  for (const Reading reading : {Reading::kTogether, Reading::kContextFirst}) {
    const auto json = to_json(summarize(task, ask(task, items, reading, 1)))["metrics"];
    const std::vector<QuestionResult> alone = ask(task, items, reading, 1), together = ask(task, items, reading, 5);
    EXPECT_EQ(to_json(summarize(task, together))["metrics"], json);
    for (std::size_t i = 0; i < alone.size(); ++i)
      for (std::size_t c = 0; c < 3; ++c)
        EXPECT_EQ(alone[i].answer.scores[c].log_likelihood, together[i].answer.scores[c].log_likelihood);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HarnessEngine, testing::Values("full", "streaming:cap=96", "snapkv:budget=64,window=16"));

// Context and question read one after the other are what a session reads of their texts.
TEST_P(HarnessEngine, PartsAreReadAsASessionReadsThem) {
  const EvalTask task = task_of(kGenerate);
  const std::vector<TaskItem> items = items_of(task);
  const std::vector<QuestionResult> results = ask(task, items, Reading::kContextFirst);
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto session = engine_->new_session({.policy = GetParam()});
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE((*session)->read(items[i].context).ok());
    ASSERT_TRUE((*session)->read(items[i].questions[0].prompt).ok());
    GenerateOptions options;
    options.max_tokens = 9;
    options.stop = {"\n\n"};
    options.sampling.temperature = 0;
    const auto expected = (*session)->generate(options, {});
    ASSERT_TRUE(expected.ok());
    EXPECT_EQ(results[i].answer.text, expected->text) << i;
  }
}

class HarnessPrompts : public testing::Test {
 protected:
  HarnessPrompts() {
    engine_ = open_engine(std::uint64_t{1} << 26);
    task_ = task_of(kGenerate);
    ask_.max_tokens = 9;
  }
  ItemTokens tokens(const TaskItem& item, std::int64_t room) const {
    auto made = item_tokens(engine_->text(), item, ask_, room);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return *made;
  }
  std::unique_ptr<Engine> engine_;
  EvalTask task_;
  AskOptions ask_;
};

// A prompt that is too long is shortened in the middle or at the start, or refused.
TEST_F(HarnessPrompts, ThatAreTooLong) {
  const TaskItem item = items_of(task_).back();
  const QuestionTokens whole = tokens(item, 10000).questions[0];
  EXPECT_EQ(whole.left_out, 0);
  const auto size = static_cast<std::int64_t>(whole.prompt.size());
  const QuestionTokens middle = tokens(item, size - 20 + 9).questions[0];
  EXPECT_EQ(middle.left_out, 20);
  const std::ptrdiff_t half = (size - 20) / 2;
  Tokens expected(whole.prompt.begin(), whole.prompt.begin() + half);
  expected.insert(expected.end(), whole.prompt.begin() + half + 20, whole.prompt.end());
  EXPECT_EQ(middle.prompt, expected);
  ask_.truncation = Truncation::kStart;
  const QuestionTokens start = tokens(item, size - 20 + 9).questions[0];
  EXPECT_EQ(start.prompt.front(), whole.prompt.front());
  EXPECT_EQ(Tokens(start.prompt.begin() + 1, start.prompt.end()),
            Tokens(whole.prompt.begin() + 21, whole.prompt.end()));
  ask_.truncation = Truncation::kRefuse;
  EXPECT_EQ(tokens(item, size - 20 + 9).questions[0].status.code(), StatusCode::kInvalidArgument);
}

// A context that questions share is shortened once, for the longest; a conversation for all of them.
TEST_F(HarnessPrompts, OfOneContextAreShortenedTogether) {
  const EvalTask turns = task_of(R"({"request": "generate", "context": "{{ story }}\n", "prompt": "So {{ who }}",
      "turns": "questions", "references": "a", "metrics": ["exact_match"], "max_tokens": 9})");
  const TaskItem item = items_of(turns, true).back();
  ask_.reading = Reading::kContextFirst;
  const ItemTokens whole = tokens(item, 10000);
  std::int64_t longest = 0, all = 0;
  for (const QuestionTokens& question : whole.questions) {
    longest = std::max<std::int64_t>(longest, std::ssize(question.prompt));
    all += std::ssize(question.prompt);
  }
  const auto context = static_cast<std::int64_t>(whole.context.size());
  const ItemTokens cut = tokens(item, context + longest + 9 - 15);
  EXPECT_EQ(std::ssize(cut.context), context - 15);
  for (const QuestionTokens& question : cut.questions) EXPECT_EQ(question.left_out, 15);
  ask_.reading = Reading::kConversation;
  const ItemTokens conversation = tokens(item, 10000);
  std::int64_t golden = 0;
  for (std::size_t q = 0; q + 1 < conversation.questions.size(); ++q)
    golden += std::ssize(conversation.questions[q].golden);
  const ItemTokens talk = tokens(item, context + all + golden + 9 - 15);
  EXPECT_EQ(std::ssize(talk.context), context - 15);
  EXPECT_EQ(std::ssize(tokens(item, context + all + golden + 9).context), context);
}

// Tokens of parts, of a vocabulary that would put a space in front of each, and of Gemma's.
class HarnessSentencePiece : public testing::Test {
 protected:
  // Context, question and choice, or right answer, are the tokens of one text: none of them begins with a space of its
  // own.
  static void expect_one_text(const ModelText& text) {
    const auto whole = [&](const std::string& all) {
      const auto tokens = text.encode(all, true);
      EXPECT_TRUE(tokens.ok()) << tokens.status().message();
      return *tokens;
    };
    const auto join = [](std::initializer_list<Tokens> parts) {
      Tokens all;
      for (const Tokens& part : parts) all.insert(all.end(), part.begin(), part.end());
      return all;
    };
    const EvalTask choices = task_of(kChoices), generate = task_of(kGenerate);
    const TaskItem item = items_of(choices).front(), asked = items_of(generate).front();
    AskOptions options;
    for (const Reading reading : {Reading::kContextFirst, Reading::kConversation}) {
      SCOPED_TRACE(reading_name(reading));
      options.reading = reading;
      options.request = TaskRequest::kChoices;
      const auto scored = item_tokens(text, item, options, 100000);
      ASSERT_TRUE(scored.ok()) << scored.status().message();
      const QuestionTokens& question = scored->questions.front();
      for (std::size_t c = 0; c < 3; ++c)
        EXPECT_EQ(join({scored->context, question.prompt, question.texts[c]}),
                  whole(item.context + item.questions[0].prompt + item.questions[0].choices[c]));
      options.request = TaskRequest::kGenerate;
      const auto made = item_tokens(text, asked, options, 100000);
      ASSERT_TRUE(made.ok()) << made.status().message();
      const std::string read = asked.context + asked.questions[0].prompt;
      EXPECT_EQ(join({made->context, made->questions[0].prompt}), whole(read));
      if (reading == Reading::kConversation) {
        EXPECT_EQ(join({made->context, made->questions[0].prompt, made->questions[0].golden}),
                  whole(read + golden_text(asked.questions[0])));
      }
    }
  }
};

TEST_F(HarnessSentencePiece, PartsAreTokensOfOneText) {
  RandomModelSpec spec;
  spec.vocabulary = invented_vocabulary(spec.vocab);
  spec.vocabulary->add_space_prefix = true;
  const TemporaryFile file(make_random_model(spec));
  const auto engine = open_engine(std::uint64_t{1} << 22, file.path());
  const auto alone = engine->text().encode("So", false), behind = engine->text().encode("So", false, false, true);
  ASSERT_TRUE(alone.ok() && behind.ok());
  EXPECT_NE(*alone, *behind) << "this vocabulary puts no space in front";
  expect_one_text(engine->text());
}

TEST_F(HarnessSentencePiece, PartsAreTokensOfOneTextForGemma) {
  if (!std::filesystem::exists(gemma_model()))
    GTEST_SKIP() << "needs " << gemma_model() << " (scripts/test downloads it)";
  expect_one_text(open_engine(std::uint64_t{1} << 26, gemma_model())->text());
}

// A small memory that contexts under way would fill: each item is answered all the same, as alone.
TEST(HarnessMemory, ItemsWaitForEachOther) {
  const EvalTask task = task_of(kGenerate);
  const std::vector<TaskItem> items = items_of(task);
  std::vector<std::string> answers[2];
  for (const int parallel : {1, 5}) {
    const auto engine = open_engine(std::uint64_t{900} << 10);
    const auto subject = make_engine_subject(engine.get(), {}, {});
    TaskRun run{.task = &task, .items = items};
    run.ask.policy = "full";
    run.ask.reading = Reading::kContextFirst;
    run.ask.parallel = parallel;
    const auto results = run_task(*subject, run);
    ASSERT_TRUE(results.ok()) << results.status().message();
    for (const QuestionResult& result : *results) {
      EXPECT_EQ(result.error, "");
      answers[parallel == 1 ? 0 : 1].push_back(result.answer.text);
    }
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace kvasir::test
