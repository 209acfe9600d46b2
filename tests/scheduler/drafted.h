// A text with drafts, and the comparison with the same text without them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planning/memory_plan.h"
#include "scheduler/batch_runner.h"
#include "sequence/crowd.h"

namespace kvasir::test {

// A prompt and its continuation, in passes of up to eight rows.
struct Drafted {
  // `regex`: of a grammar; empty: there is none.
  Drafted(const std::shared_ptr<LoadedModel>& of, const std::string& policy, const std::string& draft,
          float temperature, int tokens = 90, const std::string& regex = "",
          std::uint64_t memory = std::uint64_t{1} << 26)
      : model(of),
        runner(model, *new_cache(model, memory)),
        options{
            .max_tokens = tokens, .ignore_eos = regex.empty(), .sampling = {.temperature = temperature, .seed = 7}} {
    // Few words, which come again and again, so that what followed before is often right.
    if (regex.empty()) options.allowed_tokens = {20, 21, 22};
    if (!regex.empty()) options.grammar = *model->grammars->compile({GrammarSource::Kind::kRegex, regex});
    for (int i = 0; i < 66; ++i) prompt.push_back(20 + i % 11 + (i > 40 ? i % 3 : 0));
    options.draft = draft;
    options.logprobs = 1;
    text.chunk = 20;
    text.sequence = std::make_unique<Sequence>(model, runner.cache(), std::move(*make_policy(policy)));
    task.emplace(&text, prompt, Generation(*model->tokenizer, options, {}, prompt));
    while (task->prepare()) {
      const Status status = runner.pass(*task);
      ++passes;
      most_draft_bytes = std::max(most_draft_bytes, runner.draft_bytes());
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) return;
      shown += task->take_text();
    }
    EXPECT_TRUE(task->status().ok()) << task->status().message();
  }

  std::shared_ptr<LoadedModel> model;
  BatchRunner runner;
  GenerateOptions options;
  std::vector<TokenId> prompt;
  TextState text;
  std::optional<Task> task;
  int passes = 0;
  std::uint64_t most_draft_bytes = 0;  // behind passes
  std::string shown;
};

// Compares texts, caches and what follows. `drafted` may have drafts of a draft model, whose memory comes on top.
inline void expect_same(Drafted& drafted, Drafted& plain) {
  EXPECT_EQ(drafted.shown, plain.shown);
  EXPECT_EQ(drafted.text.newest, plain.text.newest);
  EXPECT_TRUE(same_bits(drafted.text.logits, plain.text.logits));
  const GenerateResult a = drafted.task->generation().result(), b = plain.task->generation().result();
  EXPECT_EQ(a.finish_reason, b.finish_reason);
  ASSERT_EQ(a.choices.size(), b.choices.size());
  for (std::size_t i = 0; i < a.choices.size(); ++i) {
    EXPECT_EQ(a.choices[i].token.id, b.choices[i].token.id);
    EXPECT_EQ(a.choices[i].token.log_probability, b.choices[i].token.log_probability);
  }
  const std::uint64_t drafts = drafted.runner.draft_bytes();
  EXPECT_EQ(drafted.runner.cache()->budget().used() - drafts, plain.runner.cache()->budget().used());
  const std::uint64_t peak = drafted.runner.cache()->budget().peak();
  const RetentionPolicy& policy = drafted.text.sequence->policy();
  if (drafts > 0) {
    const LoadedModel& draft = *drafted.model->draft;
    EXPECT_LE(drafted.most_draft_bytes, plan_draft_texts(draft.kv_shape, draft.config.context, 66 + a.tokens, 1).bytes);
  } else if (policy.traits().compacts) {
    // The state of the policy grows some tokens ahead, within what is planned.
    const MemoryRequest request{66 + a.tokens, 66, drafted.text.chunk, 1};
    EXPECT_LE(peak, plan_kv_memory(drafted.text.sequence->shape(), policy, request).bytes);
  } else {
    EXPECT_EQ(peak, plain.runner.cache()->budget().peak());
  }
  SequenceRunner one(std::move(drafted.text.sequence)), other(std::move(plain.text.sequence));
  const KvSequence* all[] = {&one.sequence()};
  drafted.runner.cache()->check_invariants(all, one.whole().state_bytes() + drafts);
  EXPECT_EQ(kept_by(one.sequence()), kept_by(other.sequence()));
  EXPECT_EQ(one.counters().kept_max, other.counters().kept_max);
  EXPECT_EQ(one.counters().seen_least, other.counters().seen_least);
  EXPECT_EQ(one.counters().first_dropped, other.counters().first_dropped);
  const auto more = random_tokens(25, crowd_spec().vocab, 9);
  EXPECT_TRUE(same_bits(all_logits(one, more, 7), all_logits(other, more, 7)));
}

}  // namespace kvasir::test
