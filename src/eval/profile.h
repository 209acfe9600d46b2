// Profiles a model's heads on texts: which KV heads attend to the same tokens (retention/head_profile.h), and how the
// queries of each head lie (retention/query_profile.h).
//
// Every text is cut into articles of `tokens` tokens, each read under `full` from an empty cache. In each article,
// `queries` of the queries that see more than `top_k` tokens are drawn without repetition.
// Thread-safety: one profile at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "eval/scoring.h"
#include "retention/head_profile.h"
#include "retention/query_profile.h"
#include "runtime/loaded_model.h"

namespace kvasir {

struct ProfileOptions {
  std::int64_t tokens = 0;     // per article; 0: 1,000, or the model's trained context if that is less
  std::int64_t articles = 50;  // most articles, taken from the texts in turn; 0: all
  int top_k = 64;
  int queries = 32;  // sampled per article
  int reps = 0;      // clusters per layer; 0: default_representatives
  std::uint64_t seed = 1;
};

// Returns the articles of texts: consecutive pieces of `tokens` tokens, without shorter rests, one of each text in
// turn, at most `articles` (0: all). Errors: kInvalidArgument if there is none.
Result<std::vector<std::span<const TokenId>>> cut_articles(std::span<const std::vector<TokenId>> texts,
                                                           std::int64_t tokens, std::int64_t articles);

// Returns the tokens per article that `options` mean.
std::int64_t article_tokens(const LoadedModel& model, const ProfileOptions& options);

// Errors: kInvalidArgument for options out of range.
Status check_profile_options(const LoadedModel& model, const ProfileOptions& options);

struct ModelProfile {
  HeadProfile heads;
  QueryProfile queries;
};

// Profiles the layers that a policy governs. REQUIRES: article_tokens tokens in each article, at least one article.
// Errors: those of check_profile_options and read_observed.
Result<ModelProfile> profile_model(const std::shared_ptr<LoadedModel>& model,
                                   std::span<const std::span<const TokenId>> articles, const ProfileOptions& options,
                                   const Progress& progress);

}  // namespace kvasir
