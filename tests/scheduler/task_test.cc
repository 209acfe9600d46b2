// Tasks that give up their pages and are recomputed, and tasks that draw within passes.
#include "scheduler/task.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "scheduler/batch_runner.h"
#include "sequence/crowd.h"

namespace kvasir::test {
namespace {

// A prompt and its continuation, run to their end in passes of up to 7 rows.
struct Continued {
  // `thinks`: the prompt opens thoughts, which close after 25 tokens.
  // `forces`: the prompt opens thoughts, and a grammar forces the mark that closes them with what follows.
  explicit Continued(const LoadedModel& model, bool thinks = false, bool forces = false)
      : options(forces ? forcing(model) : options_for(model, thinks)),
        task(&text, prompt, Generation(*model.tokenizer, options, {}, prompt)) {
    text.chunk = 20;
  }

  // Gives up the sequence each time it has come to hold as many tokens as `releases` says.
  void run(const std::shared_ptr<LoadedModel>& model, const std::string& policy, std::span<const TokenIndex> releases) {
    BatchRunner runner(model, *new_cache(model, std::uint64_t{1} << 26));
    const auto start = [&] {
      text.sequence = std::make_unique<Sequence>(model, runner.cache(), std::move(*make_policy(policy)));
    };
    start();
    while (task.prepare()) {
      if (released < releases.size() && text.sequence->tables().next_index() >= releases[released]) {
        in_chunk += text.sequence->in_chunk() ? 1 : 0;
        closed_in_chunk += text.sequence->in_chunk() && task.generation().closed_thoughts() ? 1 : 0;
        task.release();
        ++released;
        EXPECT_EQ(runner.cache()->budget().used(), 0u);
        EXPECT_TRUE(task.prepare());
        start();
      }
      const kvasir::Turn turn{&task, 7};
      rows += runner.plan(turn).rows;
      const Status status = runner.pass({&turn, 1});
      ASSERT_TRUE(status.ok()) << status.message();
      shown += task.take_text();
      task.add_forced();
    }
    ASSERT_TRUE(task.status().ok()) << task.status().message();
  }

  const std::vector<TokenId> prompt = random_tokens(105, crowd_spec().vocab, 1);
  static GenerateOptions options_for(const LoadedModel& model, bool thinks) {
    GenerateOptions options{.max_tokens = 82, .ignore_eos = true, .sampling = {.temperature = 1.2F, .seed = 7}};
    if (!thinks) return options;
    ThoughtMarks marks{"<never>", {model.tokenizer->bytes_of(kClose, true)}, true};
    marks.closing = {kClose};
    options.thoughts = std::make_shared<const ThoughtMarks>(std::move(marks));
    options.thought_budget = 25;
    return options;
  }
  static GenerateOptions forcing(const LoadedModel& model) {
    GenerateOptions options{.max_tokens = 82, .sampling = {.temperature = 1.2F, .seed = 7}};
    options.thoughts = std::make_shared<const ThoughtMarks>(ThoughtMarks{"<never>", {"#"}, true});
    options.grammar =
        *model.grammars->compile({GrammarSource::Kind::kRegex, "[a-z]{15}#01234567890123456789[a-z]{40}"});
    return options;
  }
  static constexpr TokenId kClose = 100;
  const GenerateOptions options;
  TextState text;
  Task task;
  std::size_t released = 0;
  int in_chunk = 0;         // of these, in the middle of a chunk
  int closed_in_chunk = 0;  // of these, behind the mark that closes thoughts
  int rows = 0;             // of all passes
  std::string shown;
};

// The bits of a sequence that was never given up, and so of what follows; nothing is drawn or shown again.
TEST(Task, RecomputedAfterGivingUpItsPages) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  constexpr TokenIndex kReleases[] = {30, 90, 105, 106, 130, 147};
  for (const char* type : {"f16", "q4", "k=q8,v=q2,recent=20"})
    for (const std::string& policy : all_policies_in_use()) {
      SCOPED_TRACE(policy + " " + type);
      const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = 16});
      Continued kept(*model), released(*model);
      ASSERT_NO_FATAL_FAILURE(kept.run(model, policy, {}));
      ASSERT_NO_FATAL_FAILURE(released.run(model, policy, kReleases));
      ASSERT_EQ(released.released, std::size(kReleases));
      EXPECT_GT(released.in_chunk, 0);
      EXPECT_GE(released.rows, kept.rows + 30 + 90 + 105 + 106 + 130 + 147) << "nothing was run again";
      EXPECT_EQ(released.task.generation().text(), kept.task.generation().text());
      EXPECT_EQ(released.shown, kept.shown);
      EXPECT_EQ(released.text.newest, kept.text.newest);
      EXPECT_TRUE(same_bits(released.text.logits, kept.text.logits));
      SequenceRunner again(std::move(released.text.sequence)), runner(std::move(kept.text.sequence));
      EXPECT_EQ(kept_by(again.sequence()), kept_by(runner.sequence()));
      EXPECT_EQ(again.counters().kept_max, runner.counters().kept_max);
      if (policy != "full") {
        EXPECT_TRUE(again.counters().first_dropped.has_value()) << "nothing was dropped";
      }
      EXPECT_EQ(again.counters().first_dropped, runner.counters().first_dropped);
      const auto more = random_tokens(30, crowd_spec().vocab, 9);
      EXPECT_TRUE(same_bits(all_logits(again, more, 7), all_logits(runner, more, 7)));
    }
}

// Thoughts leave the sequence after the same token when it is recomputed, whenever it was given up.
TEST(Task, RecomputedAfterItsThoughtsWereDropped) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  for (const char* type : {"f16", "q4"}) {
    SCOPED_TRACE(type);
    const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = 16});
    ASSERT_FALSE(model->tokenizer->bytes_of(Continued::kClose, true).empty());
    Continued stays(*model, true), drops(*model, true);
    ASSERT_NO_FATAL_FAILURE(stays.run(model, "full", {}));
    ASSERT_NO_FATAL_FAILURE(drops.run(model, "full:thoughts=drop", {}));
    const std::int64_t thought = drops.task.generation().thought_tokens();
    const auto closed = drops.task.generation().closed_thoughts();
    ASSERT_TRUE(closed);
    EXPECT_GT(thought, 5);
    EXPECT_EQ(closed->end - closed->begin, thought);
    EXPECT_EQ(drops.text.sequence->tables().longest(), stays.text.sequence->tables().longest() - thought);
    EXPECT_EQ(drops.text.sequence->counters().first_dropped, 105 + closed->begin);
    EXPECT_EQ(drops.task.generation().text().substr(0, 10), stays.task.generation().text().substr(0, 10));
    EXPECT_NE(drops.task.generation().text(), stays.task.generation().text());
    for (TokenIndex release = 100; release < 146; ++release) {  // full ends with the context, 150
      SCOPED_TRACE(release);
      Continued released(*model, true);
      const TokenIndex releases[] = {release, release + 4};
      ASSERT_NO_FATAL_FAILURE(released.run(model, "full:thoughts=drop", releases));
      ASSERT_EQ(released.released, 2u);
      EXPECT_EQ(released.shown, drops.shown);
      EXPECT_TRUE(same_bits(released.text.logits, drops.text.logits));
      EXPECT_EQ(kept_by(released.text.sequence->tables()), kept_by(drops.text.sequence->tables()));
    }
  }
}

// The same where the closing mark runs in the middle of a chunk of forced tokens, whose passes have 7 rows.
TEST(Task, RecomputedAfterThoughtsClosedWithinAChunk) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  Continued drops(*model, true, true);
  ASSERT_NO_FATAL_FAILURE(drops.run(model, "full:thoughts=drop", {}));
  const auto closed = drops.task.generation().closed_thoughts();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->begin, 0);
  EXPECT_EQ(drops.text.sequence->counters().first_dropped, 105);
  int in_chunk = 0;
  for (TokenIndex release = 106; release < 140; ++release) {
    SCOPED_TRACE(release);
    Continued released(*model, true, true);
    const TokenIndex releases[] = {release, release + 4};
    ASSERT_NO_FATAL_FAILURE(released.run(model, "full:thoughts=drop", releases));
    ASSERT_EQ(released.released, 2u);
    in_chunk += released.closed_in_chunk;
    EXPECT_EQ(released.shown, drops.shown);
    EXPECT_TRUE(same_bits(released.text.logits, drops.text.logits));
    EXPECT_EQ(kept_by(released.text.sequence->tables()), kept_by(drops.text.sequence->tables()));
  }
  EXPECT_GT(in_chunk, 5);
}

std::string choice_text(const GeneratedToken& token) {
  std::string text = fmt::format("{} {}", token.token.id, token.token.log_probability);
  for (const TokenChoice& choice : token.likeliest) text += fmt::format("; {} {}", choice.id, choice.log_probability);
  return text;
}

// Tasks that draw in different ways, in one pass after another until all have ended.
struct Drawing {
  Drawing(const std::shared_ptr<LoadedModel>& model, bool prepares) {
    const GenerateOptions plain{.max_tokens = 40, .ignore_eos = true, .sampling = {.temperature = 0, .seed = 7}};
    std::vector<GenerateOptions> ways(6, plain);
    ways[1].sampling.temperature = 1.2F;
    ways[2].sampling = {.temperature = 0.9F, .top_k = 5, .top_p = 0.9F, .seed = 8};
    ways[3].sampling = {.temperature = 1.0F, .repetition_penalty = 1.3F, .presence_penalty = 0.5F, .seed = 9};
    ways[4].sampling.temperature = 0.7F;
    ways[4].logprobs = 3;
    ways[5].max_tokens = 9;  // ends while the others go on
    BatchRunner runner(model, *new_cache(model, std::uint64_t{1} << 26));
    texts.resize(ways.size());
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::vector<TokenId> prompt = random_tokens(20 + static_cast<int>(i), crowd_spec().vocab, i);
      tasks.emplace_back(&texts[i], prompt, Generation(*model->tokenizer, ways[i], {}, prompt));
      texts[i].sequence = std::make_unique<Sequence>(model, runner.cache(), std::move(*make_policy("full")));
    }
    for (;;) {
      std::vector<kvasir::Turn> turns;
      for (Task& task : tasks)
        if (task.prepare()) turns.push_back({.task = &task, .most_rows = 7, .prepares = prepares});
      if (turns.empty()) break;
      const Status status = runner.pass(turns);
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) break;
      for (const Task& task : tasks) drawn += task.generation().pending() ? 1 : 0;
    }
  }

  std::vector<TextState> texts;
  std::vector<Task> tasks;
  int drawn = 0;  // tokens that waited to be run when a pass ended
};

// What a task draws does not depend on when it does so, nor on the threads that do.
TEST(TaskThreads, DrawInThePassWhatOneDrawsAfterIt) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const Drawing after(load(file.path(), {.threads = 1}), false);
  EXPECT_EQ(after.drawn, 0);
  for (const int threads : {1, 2, 5}) {
    SCOPED_TRACE(threads);
    const Drawing within(load(file.path(), {.threads = threads}), true);
    EXPECT_EQ(within.drawn, 5 * 40 + 9);
    for (std::size_t i = 0; i < after.tasks.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_TRUE(within.tasks[i].status().ok());
      const GenerationState drawn = within.tasks[i].generation().state();
      const GenerationState expected = after.tasks[i].generation().state();
      EXPECT_EQ(drawn.tokens, i == 5 ? 9 : 40);
      EXPECT_EQ(drawn.text, expected.text);
      EXPECT_EQ(drawn.finish_reason, expected.finish_reason);
      EXPECT_EQ(drawn.sampler.random, expected.sampler.random);
      EXPECT_EQ(drawn.sampler.recent, expected.sampler.recent);
      EXPECT_EQ(within.texts[i].newest, after.texts[i].newest);
      EXPECT_TRUE(same_bits(within.texts[i].logits, after.texts[i].logits));
      ASSERT_EQ(drawn.choices.size(), expected.choices.size());
      for (std::size_t c = 0; c < drawn.choices.size(); ++c)
        EXPECT_EQ(choice_text(drawn.choices[c]), choice_text(expected.choices[c]));
    }
  }
}

}  // namespace
}  // namespace kvasir::test
