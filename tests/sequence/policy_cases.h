// What tests of the engine run each policy with that decides by table, and a way to run it.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "support/engine_fixture.h"

namespace kvasir::test {

struct PolicyCases {
  std::string name;
  std::vector<std::string> covering;  // keep all of kCoveredTokens tokens
  std::vector<std::string> evicting;  // keep a few dozen tokens of a few hundred
};

inline constexpr int kCoveredTokens = 300;

inline const std::vector<PolicyCases>& all_policy_cases() {
  static const std::vector<PolicyCases> cases = {
      {"h2o",
       {"h2o:budget=300,recent=100", "h2o:budget=100%,recent=0,pos=compact", "h2o:budget=300,recent=0,pos=original",
        "h2o:budget=300,recent=10,heads=independent"},
       {"h2o:budget=24,recent=8", "h2o:budget=40,recent=10,sinks=4,pos=compact", "h2o:budget=33,recent=0,pos=original",
        "h2o:budget=20,recent=5,every=9", "h2o:budget=30%,recent=4,pos=compact",
        "h2o:budget=28,recent=8,heads=independent",
        "h2o:budget=31,recent=6,sinks=2,every=4,pos=compact,heads=independent", "h2o:budget=28,recent=9,value=wo",
        "h2o:budget=24,recent=4,every=5,agg=max,value=wo,heads=independent"}},
      {"tova",
       {"tova:budget=300", "tova:budget=100%,pos=original", "tova:budget=300,pos=compact,heads=independent"},
       {"tova:budget=24", "tova:budget=40,pos=compact", "tova:budget=33,pos=original", "tova:budget=17,every=8",
        "tova:budget=25%", "tova:budget=30,heads=independent", "tova:budget=1,pos=compact"}},
      {"cascade",
       {"cascade:size=296,n=1,sinks=4", "cascade:size=1184,n=4,sinks=4", "cascade:size=4,n=4,sinks=299",
        "cascade:size=600,n=2,sinks=0,heads=independent"},
       {"cascade:size=32,n=1,sinks=4", "cascade:size=32,n=4,sinks=4", "cascade:size=48,n=2,sinks=20,accept=3",
        "cascade:size=16,n=16,sinks=0,accept=1", "cascade:size=40,n=4,sinks=3,select=off",
        "cascade:size=32,n=4,sinks=1,heads=independent", "cascade:size=60,n=3,sinks=2,reduce=max,gamma=0.5"}},
      {"lethe",
       {"lethe:start=300", "lethe:start=300,pos=compact", "lethe:start=300,pos=original,heads=independent"},
       {"lethe:tau=2,start=24,sinks=2", "lethe:tau=1.5,start=20,recent=0.2,pos=compact,max=48",
        "lethe:tau=2,start=24,sinks=0,pos=original,max=60",
        "lethe:tau=1.2,start=16,sinks=2,recent=0.1,heads=independent",
        "lethe:tau=3,start=30,max=40,gamma=0.5,heads=independent"}},
      {"snapkv",
       {"snapkv:budget=300", "snapkv:budget=100%,pos=compact", "snapkv:budget=300,prompt=blocks,every=16"},
       {"snapkv:budget=40,window=8,kernel=5,pool=avg", "snapkv:budget=30%,window=6,kernel=3,pool=max,pos=compact",
        "snapkv:budget=40,window=8,kernel=5,pool=avg,pos=original", "snapkv:budget=36,window=8,kernel=3,share=ada",
        "snapkv:budget=40,window=6,kernel=3,prompt=blocks,every=9,agg=max,pos=compact",
        "snapkv:budget=36,window=6,kernel=3,chunk=7,gate=on,every=12",
        "snapkv:budget=36,window=6,kernel=3,value=wo,share=ada,every=12",
        "snapkv:budget=40,window=6,kernel=3,value=wo+h2o:budget=24,recent=8,value=wo",
        "snapkv:budget=40,window=8,kernel=5,pool=avg+h2o:budget=24,recent=8",
        "snapkv:budget=40,window=8,kernel=5,pool=avg+streaming:sinks=2,window=20"}},
      {"pyramidkv",
       {"pyramidkv:budget=300", "pyramidkv:budget=300,pos=compact"},
       {"pyramidkv:budget=40,window=8,kernel=5,pool=avg,beta=4",
        "pyramidkv:budget=40,window=8,kernel=5,pool=avg,pos=compact",
        "pyramidkv:budget=40,window=8,kernel=3,beta=4,prompt=blocks,every=6",
        "pyramidkv:budget=40,window=8,kernel=5,pool=avg+tova:budget=24"}},
      {"cake",
       {"cake:budget=300", "cake:budget=300,pos=compact"},
       {"cake:budget=40,window=8,kernel=5", "cake:budget=40,window=8,kernel=1,pos=compact",
        "cake:budget=40,window=8,kernel=3,share=ada", "cake:budget=40,window=8,kernel=3,chunk=5",
        "cake:budget=40,window=8,kernel=3,prompt=blocks,every=6,most=2",
        "cake:budget=40,window=8,kernel=5+lethe:tau=2,start=24"}},
      {"keydiff",
       {"keydiff:budget=300", "keydiff:budget=100%,pos=compact,prompt=blocks"},
       {"keydiff:budget=40,every=8", "keydiff:budget=33,measure=distance,span=64,pos=original",
        "keydiff:budget=30%,measure=norm,recent=6,every=5,prompt=blocks,pos=compact",
        "keydiff:budget=36,every=4,sinks=2,prompt=blocks", "keydiff:budget=40+h2o:budget=24,recent=8"}},
      {"lagkv",
       {"lagkv:budget=300", "lagkv:budget=300,pos=compact,prompt=blocks"},
       {"lagkv:budget=40,lag=12,every=8", "lagkv:budget=36,lag=8,rank=all,prompt=blocks,every=6,pos=compact",
        "lagkv:budget=30%,sinks=2,lag=10,pos=original"}},
      {"expected",
       {"expected:budget=300", "expected:budget=300,pos=compact,prompt=blocks"},
       {"expected:budget=40,every=8", "expected:budget=36,future=64,prompt=blocks,every=6,pos=compact",
        "expected:budget=30%,spread=off,epsilon=0.02,pos=original", "expected:budget=36,every=7,norm=wo"}},
      {"vase",
       {"vase:budget=300", "vase:budget=300,pos=compact,draw=off"},
       {"vase:budget=40,recent=8,every=8", "vase:budget=36,recent=6,wide=12,every=6,draw=off,pos=compact",
        "vase:budget=32,recent=5,every=6,prompt=blocks,pos=compact",
        "vase:budget=30%,recent=4,sinks=2,every=4,pos=original"}},
      {"triattention",
       {"triattention:budget=300", "triattention:budget=300,pos=compact,prompt=blocks"},
       {"triattention:budget=40,recent=6,every=8", "triattention:budget=36,recent=4,prompt=blocks,every=6,pos=compact",
        "triattention:budget=30%,recent=3,sinks=2,every=4,pos=original"}},
      {"rkv",
       {"rkv:budget=300", "rkv:budget=300,pos=compact,prompt=blocks"},
       {"rkv:budget=40,window=6,every=8", "rkv:budget=36,window=4,prompt=blocks,every=6,pos=compact",
        "rkv:budget=30%,window=5,alike=0.1,lambda=0.4,every=7,pos=original"}},
      {"matching",
       {"matching:budget=300", "matching:budget=300,pos=compact,prompt=blocks"},
       {"matching:budget=40,recent=6,every=8", "matching:budget=36,recent=4,fit=mass,prompt=blocks,every=6,pos=compact",
        "matching:budget=30%,recent=3,sinks=2,fit=off,queries=3,every=7,pos=original",
        "matching:budget=40,recent=6,every=8+h2o:budget=24,recent=8"}},
      {"kvzip",
       {"kvzip:budget=300", "kvzip:budget=300,pos=compact"},
       {"kvzip:budget=40,recent=6,repeat=64", "kvzip:budget=30%,recent=0,sinks=2,share=layer,repeat=100,pos=compact",
        "kvzip:budget=36,recent=4,share=head,pos=original"}},
      {"random",
       {"random:budget=300", "random:budget=100%,pos=compact", "random:budget=300,recent=5,heads=independent"},
       {"random:budget=24", "random:budget=40,sinks=3,recent=8,pos=compact", "random:budget=33,pos=original,seed=9",
        "random:budget=20,every=11", "random:budget=20%,heads=independent",
        "random:budget=30,recent=4,pos=compact,heads=independent"}},
  };
  return cases;
}

// The names of the registered policies that decide by table.
inline std::vector<std::string> table_policies() {
  std::vector<std::string> names;
  for (const PolicyInfo* info : all_policies()) {
    if (info->evaluation_only) continue;
    const auto policy = make_policy(info->name);
    if (policy.ok() && (*policy)->traits().compacts) names.emplace_back(info->name);
  }
  return names;
}

// Fails the test where a policy was registered without cases.
inline PolicyCases cases_of(const std::string& name) {
  const auto& all = all_policy_cases();
  const auto found = std::ranges::find(all, name, &PolicyCases::name);
  if (found != all.end() && !found->covering.empty() && !found->evicting.empty()) return *found;
  ADD_FAILURE() << "policy '" << name << "' is registered, but tests/sequence/policy_cases.h has no cases for it";
  return {};
}

inline std::string policy_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

// Small, so that thousands of passes are soon done; attention is far from even.
inline RandomModelSpec small_spec() {
  RandomModelSpec spec;
  spec.d = 32;
  spec.head_dim = 8;
  spec.ffn = 48;
  spec.vocab = 300;
  spec.weight_std = 0.25F;
  return spec;
}

// A text of which the first part is a prompt.
struct Text {
  std::vector<TokenId> tokens;
  std::size_t prompt = 0;

  Text(int prompt_tokens, int generated, std::uint64_t seed)
      : tokens(random_tokens(prompt_tokens + generated, small_spec().vocab, seed)),
        prompt(static_cast<std::size_t>(prompt_tokens)) {}
  std::span<const TokenId> read() const { return std::span(tokens).first(prompt); }
  std::span<const TokenId> generated() const { return std::span(tokens).subspan(prompt); }
};

// Feeds the text, to the first error; appends all logits.
inline Status feed_text(SequenceRunner& runner, const Text& text, int chunk, std::vector<float>* out,
                        const std::function<void(int rows)>& after_pass = {}) {
  const auto on_pass = [&](std::int64_t, int rows, std::span<const float> logits) {
    out->insert(out->end(), logits.begin(), logits.end());
    if (after_pass) after_pass(rows);
    return true;
  };
  for (const bool prompt : {true, false}) {
    const auto tokens = prompt ? text.read() : text.generated();
    const auto source = prompt ? SequenceRunner::Source::kPrompt : SequenceRunner::Source::kGenerated;
    const Status status = runner.feed(tokens, chunk, SequenceRunner::Logits::kAll, on_pass, source);
    if (!status.ok()) return status;
  }
  return {};
}

// Feeds the text, which no error may end; all logits.
inline std::vector<float> run_text(SequenceRunner& runner, const Text& text, int chunk,
                                   const std::function<void(int rows)>& after_pass = {}) {
  std::vector<float> out;
  const Status status = feed_text(runner, text, chunk, &out, after_pass);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace kvasir::test
