// A changing crowd of sequences that share passes: prompts and answers of random lengths under several policies, chunks
// executed in several passes, forks, sequences given up, in every codec of the model. Each has in the end the bits of
// itself alone, in a cache that has no other codec.
#pragma once

#include <algorithm>
#include <random>

#include "kv/table.h"
#include "sequence/policy_cases.h"
#include "sequence/step.h"

namespace kvasir::test {

inline const std::vector<std::string>& range_policies() {
  static const std::vector<std::string> policies = {
      "full",
      "window:size=40",
      "streaming:sinks=4,window=36",
      "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
      "streaming:sinks=4,window=44,every=16,realign=rotate",
  };
  return policies;
}

inline std::vector<std::string> all_policies_in_use() {
  std::vector<std::string> policies = range_policies();
  for (const PolicyCases& cases : all_policy_cases())
    policies.insert(policies.end(), cases.evicting.begin(), cases.evicting.end());
  return policies;
}

// Prompts and answers in turn.
struct Script {
  struct Part {
    Source source = Source::kPrompt;
    std::vector<TokenId> tokens;
  };
  std::vector<Part> parts;

  void add(Source source, int tokens, std::uint64_t seed) {
    parts.push_back({source, random_tokens(tokens, small_spec().vocab, seed)});
  }
};

struct Outcome {
  std::vector<float> logits;
  std::vector<std::vector<TokenIndex>> kept;  // by table

  bool operator==(const Outcome& other) const { return same_bits(logits, other.logits) && kept == other.kept; }
};

inline std::vector<std::vector<TokenIndex>> kept_by(const KvSequence& sequence) {
  std::vector<std::vector<TokenIndex>> kept;
  for (int t = 0; t < sequence.tables(); ++t) kept.push_back(retained_ids(sequence.table(t)));
  return kept;
}

inline Outcome run_alone(const std::shared_ptr<LoadedModel>& model, const std::string& policy, const Script& script,
                         int chunk, std::optional<KvCodec> codec = {}) {
  const auto runner = new_runner(model, policy, std::uint64_t{1} << 28, codec);
  Outcome outcome;
  for (const Script::Part& part : script.parts) {
    const Status status = runner->feed(
        part.tokens, chunk, Logits::kAll,
        [&](std::int64_t, int, std::span<const float> logits) {
          outcome.logits.insert(outcome.logits.end(), logits.begin(), logits.end());
          return true;
        },
        part.source);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  outcome.kept = kept_by(runner->sequence());
  return outcome;
}

// A sequence of the crowd, and how far it is in its script.
struct Member {
  std::string policy;
  KvCodec codec;
  int chunk = 0;
  Script script;
  std::unique_ptr<Sequence> sequence;
  std::size_t part = 0;
  std::size_t at = 0;  // in the part
  Outcome outcome;

  bool done() const { return part == script.parts.size(); }
  bool in_prompt() const { return script.parts[part].source == Source::kPrompt; }
  std::span<const TokenId> rest() const { return std::span(script.parts[part].tokens).subspan(at); }
  void advance(const StepResult& result) {
    outcome.logits.insert(outcome.logits.end(), result.logits.begin(), result.logits.end());
    at += static_cast<std::size_t>(result.tokens);
    if (at == script.parts[part].tokens.size()) ++part, at = 0;
  }
};

struct Events {
  int crowded = 0;  // passes of several sequences
  int mixed = 0;    // of prompt rows and decoding rows
  int split = 0;    // chunks executed in several passes
  int forks = 0;
  int cancelled = 0;
  int of_codecs = 0;     // passes of sequences in several codecs
  std::size_t most = 0;  // sequences in a pass
};

class Crowd {
 public:
  Crowd(std::shared_ptr<LoadedModel> model, std::vector<std::string> policies, std::uint64_t seed)
      : model_(std::move(model)),
        cache_(*new_cache(model_, std::uint64_t{1} << 28)),
        step_(model_, cache_),
        policies_(std::move(policies)),
        random_(seed) {}

  void add() {
    auto member = std::make_unique<Member>();
    member->policy = policies_[static_cast<std::size_t>(draw(0, static_cast<int>(policies_.size()) - 1))];
    member->chunk = draw(0, 3) == 0 ? 0 : draw(1, 60);
    member->codec = cache_->shape().codec();
    if (const int codecs = static_cast<int>(model_->codecs.size()); codecs > 1)
      member->codec = model_->codecs[static_cast<std::size_t>(draw(0, codecs - 1))];
    add_parts(member->script);
    member->sequence =
        std::make_unique<Sequence>(model_, cache_, std::move(*make_policy(member->policy)), member->codec);
    members_.push_back(std::move(member));
  }

  void run(std::size_t crowd, int steps) {
    for (int i = 0; i < steps; ++i) {
      while (members_.size() < crowd) add();
      const int choice = draw(0, 99);
      if (choice < 4) fork();
      if (choice == 4 && members_.size() > 1) {
        members_.erase(members_.begin() + draw(0, static_cast<int>(members_.size()) - 1));
        ++events.cancelled;
      }
      ASSERT_NO_FATAL_FAILURE(pass());
      collect();
    }
    while (!members_.empty()) {
      ASSERT_NO_FATAL_FAILURE(pass());
      collect();
    }
    std::vector<const KvSequence*> none;
    cache_->check_invariants(none);
    EXPECT_EQ(cache_->budget().used(), 0u);
  }

  Step& step() { return step_; }
  PageStore* store() { return model_->store_of(*cache_); }

  Events events;

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  void add_part(Script& script, Source source, int most_tokens) {
    const std::uint64_t seed = random_();
    script.add(source, draw(1, most_tokens), seed);
  }
  void add_parts(Script& script) {
    for (int part = draw(1, 2); part > 0; --part) {
      add_part(script, Source::kPrompt, 120);
      add_part(script, Source::kGenerated, 25);
    }
  }

  void pass() {
    std::vector<Member*> chosen;
    for (const auto& member : members_)
      if (draw(0, 3) > 0) chosen.push_back(member.get());
    if (chosen.empty()) chosen.push_back(members_.front().get());
    std::ranges::shuffle(chosen, random_);
    std::vector<StepRequest> requests;
    bool prompt = false, generated = false;
    for (Member* member : chosen) {
      Sequence::Input input{member->rest(), member->script.parts[member->part].source, member->chunk};
      input.logits = Logits::kAll;
      if (draw(0, 1) == 0) input.most_rows = draw(1, 40);
      requests.push_back({member->sequence.get(), input});
      (member->in_prompt() ? prompt : generated) = true;
    }
    const Step::Plan plan = step_.plan(requests);
    ASSERT_TRUE(plan.fits);
    for (const Sequence::PassPlan& one : plan.passes) events.split += one.begins_chunk && !one.ends_chunk() ? 1 : 0;
    std::vector<StepResult> results(requests.size());
    const Status status = step_.run(plan, requests, results);
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      ASSERT_TRUE(results[i].status.ok());
      ASSERT_EQ(results[i].rows, results[i].tokens);
      chosen[i]->advance(results[i]);
    }
    events.crowded += chosen.size() > 1 ? 1 : 0;
    events.mixed += prompt && generated ? 1 : 0;
    events.most = std::max(events.most, chosen.size());
    const auto other = [&](const Member* member) { return member->codec != chosen.front()->codec; };
    events.of_codecs += std::ranges::any_of(chosen, other) ? 1 : 0;
  }

  void fork() {
    Member& member = *members_[static_cast<std::size_t>(draw(0, static_cast<int>(members_.size()) - 1))];
    if (member.sequence->in_chunk()) return;
    auto copy = member.sequence->fork();
    ASSERT_TRUE(copy.ok());
    auto twin = std::make_unique<Member>();
    twin->policy = member.policy;
    twin->codec = member.codec;
    twin->chunk = member.chunk;
    twin->sequence = std::move(*copy);
    twin->outcome = member.outcome;
    // The same up to here, another text from here on. A prompt may be given up halfway, but then it is another prompt.
    for (std::size_t p = 0; p < member.part; ++p) twin->script.parts.push_back(member.script.parts[p]);
    if (member.at > 0) {
      if (member.in_prompt()) return;
      Script::Part part = member.script.parts[member.part];
      part.tokens.resize(member.at);
      twin->script.parts.push_back(part);
    }
    twin->part = twin->script.parts.size();
    add_parts(twin->script);
    members_.push_back(std::move(twin));
    ++events.forks;
  }

  void collect() {
    std::erase_if(members_, [&](const std::unique_ptr<Member>& member) {
      if (!member->done()) return false;
      member->outcome.kept = kept_by(member->sequence->tables());
      EXPECT_TRUE(member->outcome == run_alone(model_, member->policy, member->script, member->chunk, member->codec))
          << member->policy << " chunk " << member->chunk << ' ' << codec_name(member->codec);
      return true;
    });
  }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  Step step_;
  std::vector<std::string> policies_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Member>> members_;
};

inline RandomModelSpec crowd_spec() {
  RandomModelSpec spec = small_spec();
  spec.context = 150;  // pos=auto switches on the way
  return spec;
}

}  // namespace kvasir::test
