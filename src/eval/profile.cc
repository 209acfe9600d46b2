#include "eval/profile.h"

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/splitmix.h"
#include "base/status.h"
#include "eval/observed_text.h"

namespace kvasir {
namespace {

constexpr std::int64_t kArticleTokens = 1000;

// Sums the queries of each head, pair by pair. Rows of a head come in order from one thread, so that sums do not depend
// on how many there are.
class QueryStudy {
 public:
  explicit QueryStudy(const ModelConfig& config) {
    profile_.layers = config.governed_layers();
    profile_.heads = config.governed().heads;
    profile_.head_dim = config.governed().head_dim;
    const std::size_t heads = static_cast<std::size_t>(profile_.layers) * static_cast<std::size_t>(profile_.heads);
    profile_.means.resize(heads * static_cast<std::size_t>(profile_.head_dim));
    profile_.lengths.resize(heads * static_cast<std::size_t>(profile_.head_dim / 2));
  }

  void observe(const ObservedQueries& queries) {
    const auto dim = static_cast<std::size_t>(profile_.head_dim);
    const std::size_t head = static_cast<std::size_t>(queries.layer) * static_cast<std::size_t>(profile_.heads) +
                             static_cast<std::size_t>(queries.head);
    double* const mean = profile_.means.data() + head * dim;
    double* const length = profile_.lengths.data() + head * (dim / 2);
    for (int row = 0; row < queries.rows; ++row) {
      const std::span<const float> query = queries.of(row);
      for (std::size_t i = 0; i < dim; ++i) mean[i] += double{query[i]};
      for (std::size_t f = 0; f < dim / 2; ++f)
        length[f] += std::sqrt(double{query[2 * f]} * query[2 * f] + double{query[2 * f + 1]} * query[2 * f + 1]);
    }
  }

  QueryProfile profile(const Hash128& fingerprint, std::int64_t articles, std::int64_t tokens) && {
    profile_.fingerprint = fingerprint;
    profile_.articles = articles;
    profile_.tokens = tokens;
    for (double& x : profile_.means) x /= static_cast<double>(tokens);
    for (double& x : profile_.lengths) x /= static_cast<double>(tokens);
    return std::move(profile_);
  }

 private:
  QueryProfile profile_;
};

// Sums the overlaps of all pairs of heads at the sampled queries, article by article.
class HeadStudy final : public RowObserver {
 public:
  HeadStudy(const ModelConfig& config, std::size_t top_k)
      : heads_(config.governed().heads),
        kv_heads_(config.governed().kv_heads),
        top_k_(top_k),
        sums_(static_cast<std::size_t>(config.governed_layers()),
              std::vector<double>(static_cast<std::size_t>(config.governed().kv_heads) *
                                      static_cast<std::size_t>(config.governed().kv_heads),
                                  0.0)),
        sets_(static_cast<std::size_t>(config.governed().kv_heads)),
        queries_study_(config) {}

  bool wants_queries() const override { return true; }
  void observe_queries(TokenIndex, const ObservedQueries& queries) override { queries_study_.observe(queries); }
  QueryStudy& queries() { return queries_study_; }

  // Sets the queries of the next article, ascending.
  void begin_article(std::vector<TokenIndex> queries) { queries_ = std::move(queries); }

  Status observe(const ObservedRow& row) override {
    if (!std::ranges::binary_search(queries_, row.query())) return {};
    const int group = heads_ / kv_heads_;
    for (int kv = 0; kv < kv_heads_; ++kv) {
      pooled_.assign(row.weights(kv * group).size(), 0);
      for (int head = kv * group; head < (kv + 1) * group; ++head) {
        const std::span<const float> weights = row.weights(head);
        for (std::size_t i = 0; i < weights.size(); ++i) pooled_[i] = std::max(pooled_[i], double{weights[i]});
      }
      top_positions(pooled_, top_k_, order_, sets_[static_cast<std::size_t>(kv)]);
    }
    std::vector<double>& sums = sums_[static_cast<std::size_t>(row.layer())];
    for (std::size_t a = 0; a < sets_.size(); ++a)
      for (std::size_t b = 0; b < sets_.size(); ++b)
        sums[a * sets_.size() + b] += overlap_coefficient(sets_[a], sets_[b]);
    return {};
  }

  std::vector<std::vector<double>> means(std::int64_t queries) && {
    for (std::vector<double>& layer : sums_)
      for (double& sum : layer) sum /= static_cast<double>(queries);
    return std::move(sums_);
  }

 private:
  int heads_;
  int kv_heads_;
  std::size_t top_k_;
  std::vector<TokenIndex> queries_;
  std::vector<std::vector<double>> sums_;  // [layers][KV heads * KV heads]
  // For the current row:
  std::vector<std::vector<std::uint32_t>> sets_;  // [KV heads]
  std::vector<double> pooled_;
  std::vector<std::uint32_t> order_;
  QueryStudy queries_study_;
};

// Draws `count` of the numbers [first, end) without repetition; ascending.
std::vector<TokenIndex> draw_queries(TokenIndex first, TokenIndex end, std::int64_t count, SplitMix& draw) {
  std::vector<TokenIndex> all;
  for (TokenIndex query = first; query < end; ++query) all.push_back(query);
  count = std::min(count, std::ssize(all));
  for (std::int64_t i = 0; i < count; ++i)
    std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(i + draw.below(std::ssize(all) - i))]);
  all.resize(static_cast<std::size_t>(count));
  std::ranges::sort(all);
  return all;
}

Status check_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{}={} must be from {} to {}", name, value, low, high).about({name});
}

}  // namespace

std::int64_t article_tokens(const LoadedModel& model, const ProfileOptions& options) {
  return options.tokens > 0 ? options.tokens : std::min<std::int64_t>(kArticleTokens, model.config.context);
}

Result<std::vector<std::span<const TokenId>>> cut_articles(std::span<const std::vector<TokenId>> texts,
                                                           std::int64_t tokens, std::int64_t articles) {
  const auto size = static_cast<std::size_t>(tokens);
  std::vector<std::span<const TokenId>> result;
  bool more = true;
  for (std::size_t number = 0; more; ++number) {
    more = false;
    for (const std::vector<TokenId>& text : texts) {
      if ((number + 1) * size > text.size()) continue;
      if (articles > 0 && std::ssize(result) == articles) return result;
      result.push_back(std::span(text).subspan(number * size, size));
      more = true;
    }
  }
  if (result.empty())
    return invalid_argument("no text has the {} of an article; give a longer one, or shorter articles",
                            counted(tokens, "token"))
        .about({"tokens"});
  return result;
}

Status check_profile_options(const LoadedModel& model, const ProfileOptions& options) {
  const ModelConfig& config = model.config;
  if (config.governed().kv_heads > kMostProfileHeads || config.governed_layers() > kMostProfileLayers)
    return unsupported("the model has {} KV heads and {} layers; a head profile has at most {} and {}",
                       config.governed().kv_heads, config.governed_layers(), kMostProfileHeads, kMostProfileLayers);
  KVASIR_RETURN_IF_ERROR(check_range("tokens", options.tokens, 0, config.context));
  KVASIR_RETURN_IF_ERROR(check_range("articles", options.articles, 0, 1'000'000));
  KVASIR_RETURN_IF_ERROR(check_range("top-k", options.top_k, 1, kMostProfileTop));
  KVASIR_RETURN_IF_ERROR(check_range("queries", options.queries, 1, 65536));
  KVASIR_RETURN_IF_ERROR(check_range("reps", options.reps, 0, config.governed().kv_heads));
  if (article_tokens(model, options) <= options.top_k)
    return invalid_argument(
               "in articles of {} no query sees more than {} tokens; make articles longer or the top set "
               "smaller",
               counted(article_tokens(model, options), "token"), options.top_k)
        .about({"tokens", "top-k"});
  return {};
}

Result<ModelProfile> profile_model(const std::shared_ptr<LoadedModel>& model,
                                   std::span<const std::span<const TokenId>> articles, const ProfileOptions& options,
                                   const Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check_profile_options(*model, options));
  const ModelConfig& config = model->config;
  HeadProfile profile;
  profile.fingerprint = model->fingerprint;
  profile.layers = config.governed_layers();
  profile.kv_heads = config.governed().kv_heads;
  profile.top_k = options.top_k;
  profile.articles = std::ssize(articles);
  profile.reps = options.reps > 0 ? options.reps : default_representatives(config.governed().kv_heads);
  profile.seed = options.seed;
  HeadStudy study(config, static_cast<std::size_t>(options.top_k));
  SplitMix draw(options.seed);
  const std::int64_t total = article_tokens(*model, options) * profile.articles;
  for (const std::span<const TokenId> article : articles) {
    // Query t sees t + 1 tokens.
    std::vector<TokenIndex> queries = draw_queries(options.top_k, std::ssize(article), options.queries, draw);
    profile.queries += std::ssize(queries);
    study.begin_article(std::move(queries));
    const auto on_pass = [&](std::int64_t done, std::int64_t) {
      return !progress || progress(profile.tokens + done, total);
    };
    const ObservedTextOptions reading{"full", std::ssize(article), 0};
    KVASIR_RETURN_IF_ERROR(read_observed(model, article, reading, study, on_pass).status());
    profile.tokens += std::ssize(article);
  }
  QueryProfile queries = std::move(study.queries()).profile(model->fingerprint, profile.articles, profile.tokens);
  profile.overlap = std::move(study).means(profile.queries);
  profile.clusters = cluster_layers(profile.overlap, profile.kv_heads, profile.reps, profile.seed);
  return ModelProfile{std::move(profile), std::move(queries)};
}

}  // namespace kvasir
