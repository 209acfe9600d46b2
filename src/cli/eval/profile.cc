// kvasir profile: which KV heads of a model attend alike, for SyncKV; how its queries lie, for TriAttention; and how
// far two profiles of heads agree.
#include "eval/profile.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/signals.h"

namespace kvasir::cli {
namespace {

struct ProfileCommand {
  EngineOptions engine;
  std::vector<std::string> files;
  std::string out;
  std::string queries;
  std::vector<std::string> compare;
  ProfileOptions profile;
  bool json = false;
};

// Returns the mean overlap of two different heads of a layer; 1 for a single head.
double overlap_between(const HeadProfile& profile, std::size_t layer) {
  const auto heads = static_cast<std::size_t>(profile.kv_heads);
  if (heads == 1) return 1;
  double sum = 0;
  for (std::size_t a = 0; a < heads; ++a)
    for (std::size_t b = 0; b < heads; ++b)
      if (a != b) sum += profile.overlap[layer][a * heads + b];
  return sum / static_cast<double>(heads * (heads - 1));
}

// Returns the mean overlap of follower heads with their representative; 1 if all heads are representatives.
double overlap_with_representative(const HeadProfile& profile, std::size_t layer) {
  const HeadClusters& clusters = profile.clusters[layer];
  double sum = 0;
  int followers = 0;
  for (int head = 0; head < profile.kv_heads; ++head) {
    if (clusters.is_representative(head)) continue;
    sum += profile.overlap[layer][static_cast<std::size_t>(head * profile.kv_heads + clusters.representative(head))];
    ++followers;
  }
  return followers > 0 ? sum / followers : 1;
}

Json to_json(const ProfileCommand& command, const HeadProfile& profile) {
  Json layers = Json::array();
  const auto heads = static_cast<std::size_t>(profile.kv_heads);
  for (std::size_t layer = 0; layer < profile.clusters.size(); ++layer) {
    Json overlap = Json::array();
    for (std::size_t head = 0; head < heads; ++head) {
      const auto row = std::span(profile.overlap[layer]).subspan(head * heads, heads);
      overlap.push_back(std::vector<double>(row.begin(), row.end()));
    }
    layers.push_back({{"layer", layer},
                      {"clusters", profile.clusters[layer].cluster},
                      {"representatives", profile.clusters[layer].representatives},
                      {"head_overlap", overlap_between(profile, layer)},
                      {"representative_overlap", overlap_with_representative(profile, layer)},
                      {"overlap", std::move(overlap)}});
  }
  return {{"model", command.engine.model},
          {"profile", command.out},
          {"query_profile", command.queries},
          {"fingerprint", profile.fingerprint.hex()},
          {"kv_heads", profile.kv_heads},
          {"top_k", profile.top_k},
          {"queries", profile.queries},
          {"articles", profile.articles},
          {"tokens", profile.tokens},
          {"reps", profile.reps},
          {"seed", profile.seed},
          {"layers", std::move(layers)}};
}

std::string text_of(const HeadProfile& profile) {
  std::string out =
      fmt::format("{:>5} {:>12} {:>12}  clusters (the first head represents it)\n", "layer", "among heads", "R and NR");
  for (std::size_t layer = 0; layer < profile.clusters.size(); ++layer) {
    const HeadClusters& clusters = profile.clusters[layer];
    out += fmt::format("{:>5} {:>12.3f} {:>12.3f} ", layer, overlap_between(profile, layer),
                       overlap_with_representative(profile, layer));
    for (const int representative : clusters.representatives) {
      std::vector<int> heads = {representative};
      for (int head = 0; head < profile.kv_heads; ++head)
        if (head != representative && clusters.representative(head) == representative) heads.push_back(head);
      out += fmt::format(" [{}]", fmt::join(heads, " "));
    }
    out += '\n';
  }
  return out + fmt::format("\nmean overlap of the {} tokens attended to most, over {} queries of {}\n", profile.top_k,
                           profile.queries, counted(profile.articles, "article"));
}

Status make_profile(const ProfileCommand& command) {
  if (command.engine.model.empty()) return invalid_argument("--model is required");
  if (command.files.empty()) return invalid_argument("--file is required");
  if (command.out.empty() && command.queries.empty())
    return invalid_argument("say where to write: --out FILE for heads, --query-profile FILE for queries, or both");
  if (command.out == command.queries) return invalid_argument("--out and --query-profile name the same file");
  std::vector<std::string> inputs = command.files;
  inputs.push_back(command.engine.model);
  for (const std::string& out : {command.out, command.queries}) {
    if (out.empty()) continue;
    KVASIR_RETURN_IF_ERROR(check_output(out, inputs));
    KVASIR_RETURN_IF_ERROR(check_replaceable(out));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(command.engine));
  KVASIR_RETURN_IF_ERROR(check_profile_options(*model, command.profile));
  if (model->config.governed().kv_heads == 1)
    note("kvasir: the model has one KV head in every layer: no head follows another\n");
  std::vector<std::vector<TokenId>> texts;
  for (const std::string& file : command.files) {
    KVASIR_ASSIGN_OR_RETURN(const std::string text, read_text(file));
    KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model->tokenizer->encode(text, {}));
    texts.push_back(std::move(tokens));
  }
  KVASIR_ASSIGN_OR_RETURN(const auto articles,
                          cut_articles(texts, article_tokens(*model, command.profile), command.profile.articles));
  catch_interrupts();
  ModelProfile profile;
  {
    ProgressBar bar("profiling");
    KVASIR_ASSIGN_OR_RETURN(profile,
                            profile_model(model, articles, command.profile, [&](std::int64_t done, std::int64_t total) {
                              bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
                              return !interrupted();
                            }));
  }
  const auto write = [](const std::string& path, const std::string& text) -> Status {
    return path.empty() ? Status() : write_file(path, std::as_bytes(std::span(text)));
  };
  KVASIR_RETURN_IF_ERROR(write(command.out, format_head_profile(profile.heads)));
  KVASIR_RETURN_IF_ERROR(write(command.queries, format_query_profile(profile.queries)));
  return command.json ? print_json(to_json(command, profile.heads)) : print(text_of(profile.heads));
}

Status compare(const ProfileCommand& command) {
  if (!command.files.empty() || !command.out.empty() || !command.queries.empty())
    return invalid_argument("--compare reads two profiles and writes none; leave out -f, -o and --query-profile");
  KVASIR_ASSIGN_OR_RETURN(const HeadProfile one, read_head_profile(command.compare[0]));
  KVASIR_ASSIGN_OR_RETURN(const HeadProfile other, read_head_profile(command.compare[1]));
  KVASIR_ASSIGN_OR_RETURN(const ProfileAgreement agreement, compare_profiles(one, other));
  Json layers = Json::array();
  std::string out = fmt::format("{:>5} {:>12} {:>12}\n", "layer", "same R head", "same cluster");
  for (std::size_t layer = 0; layer < agreement.layers.size(); ++layer) {
    const auto& [representative, cluster] = agreement.layers[layer];
    layers.push_back({{"layer", layer}, {"same_representative", representative}, {"same_cluster", cluster}});
    out += fmt::format("{:>5} {:>12.3f} {:>12.3f}\n", layer, representative, cluster);
  }
  out += fmt::format("{:>5} {:>12.3f} {:>12.3f}\n", "all", agreement.mean.same_representative,
                     agreement.mean.same_cluster);
  if (!command.json) return print(out);
  return print_json({{"profiles", command.compare},
                     {"reps", one.reps},
                     {"same_representative", agreement.mean.same_representative},
                     {"same_cluster", agreement.mean.same_cluster},
                     {"layers", std::move(layers)}});
}

}  // namespace

void add_profile(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<ProfileCommand>();
  CLI::App* command =
      program.add_subcommand("profile", "How a model's heads attend, for the policies 'synckv' and 'triattention'");
  add_engine_options(*command, options->engine);
  command->get_option("--model")->required(false);  // --compare needs none
  add_kv_memory_option(*command, options->engine);
  ProfileOptions& profile = options->profile;
  command->add_option("-f,--file", options->files, "Text to read; may be repeated")
      ->type_name("FILE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("-o,--out", options->out, "File to write the profile of heads to, for the policy 'synckv'")
      ->type_name("FILE");
  command
      ->add_option("--query-profile", options->queries,
                   "File to write the profile of queries to, for the policy 'triattention'")
      ->type_name("FILE");
  command
      ->add_option("--tokens", profile.tokens,
                   "Tokens of an article, read by itself; 0: 1000, or the trained context if that is less")
      ->capture_default_str();
  command->add_option("--articles", profile.articles, "Articles to read, the texts' first in turn; 0: all")
      ->capture_default_str();
  command->add_option("--top-k", profile.top_k, "Tokens of a top set, whose overlap is compared")
      ->capture_default_str();
  command->add_option("--queries", profile.queries, "Queries sampled of each article")->capture_default_str();
  command
      ->add_option("--reps", profile.reps, "Representatives of a layer; 0: a quarter of its KV heads, and at least 1")
      ->capture_default_str();
  command->add_option("--seed", profile.seed, "Of the sample and of K-means")->capture_default_str();
  command->add_option("--compare", options->compare, "Two profiles: says how far they agree, and reads no text")
      ->type_name("FILE")
      ->expected(2);
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback(
      [options, &outcome] { outcome.status = options->compare.empty() ? make_profile(*options) : compare(*options); });
}

}  // namespace kvasir::cli
