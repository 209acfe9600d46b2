// Requests of random models, submitted to a queue whose events are checked as they come, beside the same text in a
// session alone.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "requests/request_queue.h"
#include "requests/request_text.h"
#include "sequence/crowd.h"
#include "session/session.h"

namespace kvasir::test {

inline std::string random_text(int letters, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  for (int i = 0; i < letters; ++i) text += random() % 6 == 0 ? ' ' : static_cast<char>('a' + random() % 26);
  return text;
}

inline RequestOptions random_request(std::mt19937_64& random, const std::vector<std::string>& policies,
                                     int most_tokens) {
  RequestOptions options;
  options.policy = policies[random() % policies.size()];
  const std::uint64_t seed = random();  // one draw a statement: compilers order those of one as they like
  options.prompt = random_text(1 + static_cast<int>(random() % 120), seed);
  options.generate.max_tokens = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most_tokens));
  options.generate.ignore_eos = random() % 4 != 0;
  if (random() % 6 == 0) options.generate.stop = {"a", "qu"};
  options.generate.sampling.seed = 1 + random() % 1000;
  options.generate.sampling.temperature = random() % 2 == 0 ? 0.0F : 1.5F;
  options.generate.sampling.repetition_penalty = 1.1F;
  if (random() % 3 == 0) options.generate.draft = "ngram:match=1";
  if (random() % 5 == 0) options.samples = 1 + static_cast<int>(random() % 4);
  return options;
}

// What a session alone, in a cache of its own and of no other codec, makes of sample `sample` of a request.
inline GenerateResult alone(const std::shared_ptr<LoadedModel>& model, const RequestOptions& options, int sample = 0,
                            std::uint64_t memory = std::uint64_t{1} << 28) {
  const KvCodec codec = options.codec.empty() ? model->codecs.front() : parse_codec(options.codec).codec;
  const auto runner = std::make_shared<BatchRunner>(model, *new_cache(model, model->kv_shape.with(codec), memory));
  const auto session = make_session(runner, std::move(*make_policy(options.policy)));
  const Status read = session->read(options.prompt);
  EXPECT_TRUE(read.ok()) << read.message();
  GenerateOptions generate = options.generate;
  generate.sampling.seed += static_cast<std::uint64_t>(sample);
  generate.draft.clear();  // drafts change nothing
  const auto result = session->generate(generate, {});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *result;
}

// A queue, what was asked of it, and what its events said, checked for their order as they come.
class Desk {
 public:
  Desk(std::shared_ptr<LoadedModel> model, std::uint64_t memory, const ScheduleLimits& limits = {}, double max_itl = 0)
      : model_(std::move(model)),
        runner_(std::make_shared<BatchRunner>(model_, *new_cache(model_, memory))),
        queue_(runner_, limits, max_itl) {}

  RequestId add(const RequestOptions& options) {
    auto text = encode_request(*model_, options);
    EXPECT_TRUE(text.ok()) << text.status().message();
    std::optional<KvCodec> codec;
    if (!options.codec.empty()) codec = parse_codec(options.codec).codec;
    const RequestId id = queue_.add(options, std::move(*text), std::move(*make_policy(options.policy)), {}, codec);
    asked_[id] = options;
    return id;
  }

  void poll() {
    const auto events = queue_.poll();
    ASSERT_TRUE(events.ok()) << events.status().message();
    for (const Event& event : *events) {
      ASSERT_EQ(asked_.count(event.request), 1u);
      Told& told = told_[{event.request, event.sample}];
      ASSERT_FALSE(told.ended) << "after its last event";
      switch (event.kind) {
        case Event::Kind::kPrompt:
          ASSERT_EQ(event.sample, 0);
          ASSERT_GT(event.done, told.read);
          ASSERT_LE(event.done, event.total);
          ASSERT_TRUE(told.text.empty()) << "a prompt that is read after text came";
          told.read = event.done;
          told.total = event.total;
          break;
        case Event::Kind::kText:
          ASSERT_FALSE(event.text.empty());
          told.text += event.text;
          break;
        case Event::Kind::kFinished:
          ASSERT_EQ(told.text, event.result.text);
          told.ended = true;
          told.result = event.result;
          told.status = event.status;
          break;
        case Event::Kind::kFailed:
          ASSERT_FALSE(event.status.ok());
          told.ended = true;
          told.failed = true;
          told.status = event.status;
          break;
      }
    }
  }

  void run_to_end(int most_polls = 100000) {
    for (int polls = 0; queue_.unfinished() > 0; ++polls) {
      ASSERT_LT(polls, most_polls) << "no end";
      ASSERT_NO_FATAL_FAILURE(poll());
    }
    EXPECT_EQ(runner_->cache()->budget().used(), 0u);
    runner_->cache()->check_invariants({});
  }

  struct Told {
    std::int64_t read = 0;
    std::int64_t total = 0;
    std::string text;
    bool ended = false;
    bool failed = false;
    GenerateResult result;
    Status status;
  };

  void expect_all_as_alone(const std::set<RequestId>& but = {}) {
    for (const auto& [id, options] : asked_)
      for (int sample = 0; sample < options.samples && but.count(id) == 0; ++sample) {
        SCOPED_TRACE(options.policy + ' ' + options.codec);
        const Told& told = told_[{id, sample}];
        ASSERT_TRUE(told.ended);
        ASSERT_FALSE(told.failed) << told.status.message();
        const GenerateResult expected = alone(model_, options, sample);
        EXPECT_EQ(told.result.text, expected.text);
        EXPECT_EQ(told.result.tokens, expected.tokens);
        EXPECT_EQ(told.result.finish_reason, expected.finish_reason);
        EXPECT_EQ(told.result.prompt_tokens, expected.prompt_tokens);
        EXPECT_EQ(told.result.seed, expected.seed);
        EXPECT_EQ(told.result.kv.codec, expected.kv.codec);
        EXPECT_EQ(told.result.kv.seen, expected.kv.seen);
        EXPECT_EQ(told.result.kv.kept, expected.kv.kept);
        EXPECT_EQ(told.result.kv.kept_most, expected.kv.kept_most);
        // A fork has smaller tables, and the pages that cascade keeps ready depend on the rows of a pass.
        if (options.samples == 1 && queue_.counters().preempted == 0 && !options.policy.starts_with("cascade")) {
          EXPECT_EQ(told.result.kv.bytes, expected.kv.bytes);
        }
        EXPECT_EQ(told.read, sample == 0 ? told.total : 0);
      }
  }

  const std::shared_ptr<BatchRunner>& runner() const { return runner_; }
  RequestQueue& queue() { return queue_; }
  Told& told(RequestId id, int sample = 0) { return told_[{id, sample}]; }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<BatchRunner> runner_;
  RequestQueue queue_;
  std::map<RequestId, RequestOptions> asked_;
  std::map<std::pair<RequestId, int>, Told> told_;
};

inline std::vector<std::string> policies_for_requests() {
  std::vector<std::string> policies = all_policies_in_use();
  std::erase(policies, "full");  // outgrows the trained context; has tests of its own
  return policies;
}

}  // namespace kvasir::test
