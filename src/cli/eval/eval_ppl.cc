// kvasir eval ppl: perplexity of texts under policies, and the distance from the full cache.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/eval/eval.h"
#include "cli/eval/eval_report.h"
#include "cli/signals.h"
#include "cli/text_input.h"
#include "eval/perplexity.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

struct PerplexityCommand {
  EngineOptions engine;
  std::vector<std::string> files;
  std::int64_t tokens = 0;
  std::int64_t windows = 0;
  std::string score;
  PerplexityOptions perplexity;
  std::string report;
  bool json = false;
};

// Texts by the same index.
struct Texts {
  std::vector<std::string> files;
  std::vector<std::vector<TokenId>> tokens;
};

constexpr const char* kAllTexts = "all";

// -- Texts --

// Returns the files named; for folders their .txt files, sorted by name.
Result<std::vector<std::string>> text_paths(const std::vector<std::string>& given) {
  if (std::ranges::count(given, "-") > 1)
    return invalid_argument("-f -: standard input can be read only once; give it once");
  std::vector<std::string> paths;
  for (const std::string& path : given) {
    KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> found, files_at(path, ".txt", "text"));
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return paths;
}

// Adds the text's name to a message if there are several texts.
Status name_text(const std::string& file, bool several, const Status& status) {
  if (status.ok() || !several) return status;
  return status.with_message(fmt::format("{}: {}", printable(file, 200), status.message()));
}

// Cuts a text to the part that is used.
Status cut(std::vector<TokenId>& tokens, const PerplexityCommand& options) {
  const auto size = static_cast<std::int64_t>(tokens.size());
  const std::int64_t window = options.perplexity.window;
  if (options.windows > 0 && options.windows > size / window)
    return invalid_argument("the text has {}, not {} of {}; give a longer text", counted(size, "token"),
                            counted(options.windows, "window"), window);
  const std::int64_t used = options.windows > 0 ? options.windows * window : options.tokens;
  if (used > size)
    return invalid_argument("the text has {}, not the {} asked for; give a longer text or a smaller --tokens",
                            counted(size, "token"), used);
  const std::int64_t least = window > 0 ? window : 2;
  if (used > 0 && used < least && size >= least)
    return invalid_argument("{} of the text {} too few to score: at least {} are needed; give a larger --tokens{}",
                            counted(used, "token"), used == 1 ? "is" : "are", least,
                            window > 0 ? " or a smaller --window" : "");
  if (used > 0) tokens.resize(static_cast<std::size_t>(used));
  return {};
}

// Reads all texts, and checks that each can be scored.
Result<Texts> prepare(const std::vector<std::string>& paths, const std::vector<std::string>& contents,
                      const Tokenizer& tokenizer, PerplexityCommand& options) {
  const bool several = paths.size() > 1;
  Texts texts{paths, {}};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    auto tokens = tokenizer.encode(contents[i], {});
    KVASIR_RETURN_IF_ERROR(name_text(paths[i], several, tokens.status()));
    KVASIR_RETURN_IF_ERROR(name_text(paths[i], several, cut(*tokens, options)));
    options.perplexity.bins_over = std::max(options.perplexity.bins_over, static_cast<std::int64_t>(tokens->size()));
    texts.tokens.push_back(std::move(*tokens));
  }
  for (std::size_t i = 0; i < paths.size(); ++i)
    KVASIR_RETURN_IF_ERROR(
        name_text(paths[i], several, check_perplexity(std::ssize(texts.tokens[i]), options.perplexity)));
  return texts;
}

// -- JSON --

Json to_json(const std::string& file, const PerplexityResult& r) {
  Json json = {{"file", file}, {"policy", r.policy},       {"codec", r.codec}, {"tokens", r.tokens},
               {"ppl", r.ppl}, {"ppl_error", r.ppl_error}, {"nll", r.nll}};
  if (r.full) {
    json["kld_mean"] = r.full->kld_mean;
    json["kld_p99"] = r.full->kld_p99;
    json["top1_agree"] = r.full->top1_agree;
  }
  if (r.difference) {
    json["nll_difference"] = r.difference->mean;
    json["nll_difference_error"] = r.difference->error;
  }
  json["kv_bytes_peak"] = r.kv_bytes_peak;
  json["kept_max"] = r.kept_max;
  json["kept_mean"] = r.kept_mean;
  json["dead_share"] = r.dead_share;
  json["encodings_mean"] = r.encodings_mean;
  json["encodings_max"] = r.encodings_max;
  json["tpot_ms"] = r.tpot_ms;
  json["tpot_p10_ms"] = r.tpot_p10_ms;
  json["tpot_p90_ms"] = r.tpot_p90_ms;
  json["forward_ms"] = r.forward_ms;
  json["cache_op_ms"] = r.cache_op_ms;
  json["timed_passes"] = r.timed;
  if (r.curve.empty()) return json;
  Json curve = Json::array();
  for (const PerplexityCurvePoint& point : r.curve) {
    Json of_bin = {{"position", point.position}, {"tokens", point.tokens}, {"nll", point.nll}};
    if (r.full) of_bin["kld"] = point.kld;
    of_bin["kept"] = point.kept;
    curve.push_back(std::move(of_bin));
  }
  json["curve"] = std::move(curve);
  return json;
}

Json to_json(const PerplexityCommand& options, const LoadedModel& model, const Texts& texts) {
  Json json = {{"model", options.engine.model},
               {"isa", model.kernels->name},
               {"threads", model.threads->threads()},
               {"chunk", options.perplexity.chunk},
               {"window", options.perplexity.window}};
  if (options.perplexity.window > 0) json["score"] = options.perplexity.whole_windows ? "all" : "second-half";
  json["prefill"] = options.perplexity.prefill;
  json["skip"] = options.perplexity.first_scored;
  json["compare_full"] = options.perplexity.compare_full;
  json["bins"] = options.perplexity.bins;
  json["parallel"] = options.perplexity.parallel;
  Json read = Json::array();
  for (std::size_t i = 0; i < texts.files.size(); ++i)
    read.push_back({{"file", texts.files[i]}, {"tokens", texts.tokens[i].size()}});
  json["texts"] = std::move(read);
  return json;
}

// -- For people: at most 120 columns --

class PerplexityTable {
 public:
  PerplexityTable(const std::vector<std::string>& policies, const std::vector<std::string>& kv_types, bool compared,
                  bool headings)
      : compared_(compared), headings_(headings) {
    for (const std::string& type : kv_types)
      codec_width_ = std::max(codec_width_, codec_name(parse_codec(type).codec).size());
    // Longer names get a line of their own.
    const std::size_t most = (compared ? 38 : 55) - std::min<std::size_t>(codec_width_, 25);
    for (const std::string& policy : policies) {
      const auto made = make_policy(policy);
      const std::size_t size = made.ok() ? (*made)->traits().spec.size() : policy.size();
      if (size <= most) width_ = std::max(width_, size);
    }
  }

  // With several texts, prints a line with the text's name above its rows.
  Status begin_text(const std::string& heading) {
    return headings_ ? print(fmt::format("{}{}\n", header(), printable(heading, 110))) : Status();
  }

  // Prints how the runs of one text differ from the first of them, in a table of its own: the other is full.
  Status add_differences(std::span<const PerplexityResult> runs) {
    std::string out;
    for (const PerplexityResult& r : runs) {
      if (!r.difference) continue;
      if (out.empty())
        out = fmt::format("nats per token more than {}, token by token:\n",
                          printable(run_name(runs.front().policy, runs.front().codec, true), 80));
      out += fmt::format("  {:<{}} {:>{}} {:>+9.5f} +- {:.5f}\n", r.policy, width_, r.codec, codec_width_,
                         r.difference->mean, r.difference->error);
    }
    return out.empty() ? Status() : print(out);
  }

  Status add(const PerplexityResult& r) {
    std::string out = header();
    std::string name = r.policy;
    if (name.size() > width_) {
      out += name + "\n";
      name.clear();
    }
    out += fmt::format("{:<{}} {:>{}} {:>7} {:>9.3f} {:>7.3f}", name, width_, r.codec, codec_width_, r.tokens, r.ppl,
                       r.ppl_error);
    if (r.full)
      out += fmt::format(" {:>8.5f} {:>7}", r.full->kld_mean, fmt::format("{:.2f}%", r.full->top1_agree * 100));
    return print(out + fmt::format(" {:>8.1f} {:>10} {:>8.3f} {:>8.4f}\n", r.kept_mean, human_bytes(r.kv_bytes_peak),
                                   r.tpot_ms, r.cache_op_ms));
  }

 private:
  std::string header() {
    if (std::exchange(begun_, true)) return {};
    return fmt::format("{:<{}} {:>{}} {:>7} {:>9} {:>7}{} {:>8} {:>10} {:>8} {:>8}\n", "policy", width_, "codec",
                       codec_width_, "tokens", "ppl", "+-",
                       compared_ ? fmt::format(" {:>8} {:>7}", "KLD", "top-1") : "", "kept", "KV peak", "ms/token",
                       "cache");
  }

  bool compared_;
  bool headings_;
  bool begun_ = false;
  std::size_t width_ = 6;
  std::size_t codec_width_ = 5;
};

// -- The run --

Status check_options(PerplexityCommand& options) {
  if (options.tokens < 0 || options.windows < 0 || options.perplexity.first_scored < 0)
    return invalid_argument("--tokens, --windows and --skip count something; they cannot be negative");
  if (options.windows > 0 && options.perplexity.window <= 0)
    return invalid_argument("--windows needs --window, their length in tokens");
  if (options.windows > 0 && options.tokens > 0)
    return invalid_argument("--windows says how much of each text is used; omit --tokens");
  if (!options.score.empty() && options.perplexity.window <= 0)
    return invalid_argument("--score says what of each window counts; give --window too");
  options.perplexity.whole_windows = options.score == "all";
  KVASIR_RETURN_IF_ERROR(check_policies(options.perplexity.policies, true));
  for (const std::string& policy : options.perplexity.policies)
    KVASIR_RETURN_IF_ERROR(add_demote_dir(policy, options.engine));
  KVASIR_RETURN_IF_ERROR(check_kv_types(options.perplexity.kv_types));
  options.engine.kv_type = options.perplexity.kv_types.front();
  options.perplexity.keep_nlls = options.perplexity.policies.size() * options.perplexity.kv_types.size() > 1;
  std::vector<std::string> inputs = options.files;
  inputs.push_back(options.engine.model);
  return check_report(options.report, inputs);
}

// Scores texts [first, last) under all policies on all codecs, their windows in parallel. Prints each row as soon as it
// is known.
Status run_texts(const std::shared_ptr<LoadedModel>& model, const Texts& texts, std::size_t first, std::size_t last,
                 const PerplexityCommand& options, PerplexityTable& table, std::vector<TextRuns>* done) {
  const std::size_t count = last - first;
  const std::vector<std::string>& policies = options.perplexity.policies;
  const std::vector<std::string>& codecs = options.perplexity.kv_types;
  PerplexityOptions some = options.perplexity;
  const std::size_t runs = policies.size() * codecs.size();
  const std::size_t together = some.compare_full ? runs : 1;
  std::vector<std::vector<PerplexityResult>> results(count);
  const bool row_by_row = !options.json && count == 1;
  if (row_by_row) KVASIR_RETURN_IF_ERROR(table.begin_text(texts.files[first]));
  for (std::size_t i = 0; i < runs; i += together) {
    const std::string& policy = policies[i / codecs.size()];
    const std::string& codec = codecs[i % codecs.size()];
    if (together == 1 && runs > 1) some.policies = {policy}, some.kv_types = {codec};
    const std::string one = printable(run_name(policy, codec, codecs.size() > 1), 40);
    std::vector<std::vector<PerplexityResult>> of_texts;
    {
      ProgressBar bar(together == 1 ? one : fmt::format("{} runs", together),
                      reading_work(together == 1 ? policy : "full", some.window));
      KVASIR_ASSIGN_OR_RETURN(of_texts, evaluate_perplexities(model, std::span(texts.tokens).subspan(first, count),
                                                              some, [&](std::int64_t read, std::int64_t total) {
                                                                bar.update(static_cast<std::uint64_t>(read),
                                                                           static_cast<std::uint64_t>(total), "tokens");
                                                                return !interrupted();
                                                              }));
    }
    for (std::size_t text = 0; text < count; ++text) {
      for (PerplexityResult& result : of_texts[text]) {
        if (row_by_row) KVASIR_RETURN_IF_ERROR(table.add(result));
        if (!results[text].empty()) result.difference = nll_difference(result, results[text].front());
        results[text].push_back(std::move(result));
      }
    }
  }
  for (std::size_t text = 0; text < count; ++text) {
    if (!options.json && !row_by_row) {
      KVASIR_RETURN_IF_ERROR(table.begin_text(texts.files[first + text]));
      for (const PerplexityResult& result : results[text]) KVASIR_RETURN_IF_ERROR(table.add(result));
    }
    if (!options.json) KVASIR_RETURN_IF_ERROR(table.add_differences(results[text]));
    done->push_back({texts.files[first + text], std::move(results[text])});
  }
  return {};
}

// Warns, before anything runs, of policies that will show the model more than it was trained for, and returns them.
std::vector<std::string> note_beyond(const Texts& texts, const PerplexityCommand& options, std::int64_t context) {
  std::vector<std::string> noted;
  std::int64_t tokens = options.perplexity.window;
  if (tokens == 0)
    for (const std::vector<TokenId>& text : texts.tokens) tokens = std::max(tokens, std::ssize(text));
  const std::string remedy = fmt::format("; --window {} scores {}", context,
                                         options.perplexity.window > 0 ? "shorter windows" : "windows of as many");
  for (const std::string& policy : options.perplexity.policies) {
    const auto made = make_policy(policy);
    const bool acts = options.perplexity.prefill > 0 && made.ok() && (*made)->traits().holds_prompts;
    if (note_will_see_beyond(policy, acts ? options.perplexity.prefill : tokens, context, remedy))
      noted.push_back(policy);
  }
  return noted;
}

// Prints the notes about policies, once for all texts. `noted`: those that note_beyond warned of.
void note_policies(const std::vector<TextRuns>& texts, const Texts& read, const PerplexityCommand& options,
                   std::int64_t context, const std::vector<std::string>& noted) {
  for (std::size_t policy = 0; policy < options.perplexity.policies.size(); ++policy) {
    // The number of tokens is the same for all codecs.
    const std::size_t first = policy * options.perplexity.kv_types.size();
    const std::string& spec = texts.front().runs[first].policy;
    bool idle = spec != "full";
    std::int64_t kept = 0, longest = 0;
    for (std::size_t t = 0; t < texts.size(); ++t) {
      const auto tokens = std::ssize(read.tokens[t]);
      const std::int64_t all = options.perplexity.window > 0 ? options.perplexity.window : tokens - 1;
      const PerplexityResult& run = texts[t].runs[first];
      longest = std::max(longest, all);
      idle = idle && run.seen_least >= all;
      kept = std::max(kept, run.kept_max);
    }
    if (idle) note_idle(spec, options.perplexity.prefill, longest);
    if (std::ranges::count(noted, options.perplexity.policies[policy]) == 0) note_beyond_context(spec, kept, context);
  }
}

std::vector<PerplexityResult> pool(const std::vector<TextRuns>& texts) {
  std::vector<PerplexityResult> pooled;
  if (texts.size() < 2) return pooled;
  for (std::size_t policy = 0; policy < texts.front().runs.size(); ++policy) {
    std::vector<PerplexityResult> of_policy;
    for (const TextRuns& text : texts) of_policy.push_back(text.runs[policy]);
    pooled.push_back(pool_perplexity(of_policy));
    pooled.back().difference.reset();
    if (policy > 0) pooled.back().difference = nll_difference(pooled.back(), pooled.front());
  }
  return pooled;
}

Status eval_perplexity(PerplexityCommand options) {
  KVASIR_RETURN_IF_ERROR(check_options(options));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> paths, text_paths(options.files));
  std::vector<std::string> contents;
  for (const std::string& path : paths) {
    KVASIR_ASSIGN_OR_RETURN(std::string text, read_text_file(path));
    KVASIR_RETURN_IF_ERROR(name_text(path, paths.size() > 1, check_not_empty(text)));
    contents.push_back(std::move(text));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> model, open_model(options.engine));
  KVASIR_RETURN_IF_ERROR(check_kv_types(options.perplexity.kv_types, *model));
  for (const std::string& policy : options.perplexity.policies) note_policy(policy, model->config.governed().kv_heads);
  KVASIR_ASSIGN_OR_RETURN(const Texts texts, prepare(paths, contents, *model->tokenizer, options));
  contents.clear();
  if (options.perplexity.bins > 0 && !options.json && options.report.empty())
    return invalid_argument("--bins makes curves for --json and --report; give one of them too");
  const std::vector<std::string> noted = note_beyond(texts, options, model->config.context);
  catch_interrupts();
  PerplexityTable table(options.perplexity.policies, options.perplexity.kv_types, options.perplexity.compare_full,
                        paths.size() > 1);
  std::vector<TextRuns> done;
  const std::size_t together = options.perplexity.parallel > 1 ? paths.size() : 1;
  for (std::size_t first = 0; first < paths.size(); first += together)
    KVASIR_RETURN_IF_ERROR(run_texts(model, texts, first, first + together, options, table, &done));
  note_policies(done, texts, options, model->config.context, noted);
  const std::vector<PerplexityResult> pooled = pool(done);
  if (!options.json && !pooled.empty()) {
    KVASIR_RETURN_IF_ERROR(table.begin_text(fmt::format("{} {} texts", kAllTexts, paths.size())));
    for (const PerplexityResult& result : pooled) KVASIR_RETURN_IF_ERROR(table.add(result));
    KVASIR_RETURN_IF_ERROR(table.add_differences(pooled));
  }
  if (!options.report.empty())
    KVASIR_RETURN_IF_ERROR(write_report(perplexity_report(*model, options.perplexity, done, pooled), options.report));
  if (!options.json) return {};
  Json json = to_json(options, *model, texts);
  Json runs = Json::array();
  for (const TextRuns& text : done)
    for (const PerplexityResult& run : text.runs) runs.push_back(to_json(text.file, run));
  for (const PerplexityResult& run : pooled) runs.push_back(to_json(kAllTexts, run));
  json["runs"] = std::move(runs);
  return print_json(json);
}

}  // namespace

void add_eval_ppl(CLI::App& eval, Outcome& outcome) {
  auto options = std::make_shared<PerplexityCommand>();
  auto chunk = std::make_shared<std::optional<int>>();
  PerplexityOptions& perplexity = options->perplexity;
  perplexity.policies.clear();
  CLI::App* command = eval.add_subcommand("ppl", "Perplexity of texts under one or several policies and codecs");
  add_engine_options(*command, options->engine, perplexity.kv_types);
  add_kv_memory_option(*command, options->engine);
  command
      ->add_option("-f,--file", options->files,
                   "Text to score, or a folder: its files whose names end in .txt; may be repeated; -: standard input")
      ->required()
      ->type_name("FILE")
      ->take_all()
      ->allow_extra_args(false);
  add_policies_option(*command, perplexity.policies);
  command->add_flag("--compare-full", perplexity.compare_full,
                    "Also KL divergence and top-1 agreement with the full f16 cache, all runs side by side");
  command->add_option("--tokens", options->tokens, "Tokens of each text to use; 0: all")->capture_default_str();
  command->add_option("--window", perplexity.window, "Score windows of this many tokens, each afresh; 0: one stream")
      ->capture_default_str();
  command->add_option("--windows", options->windows, "How many windows of each text; 0: all")->capture_default_str();
  command->add_option("--score", options->score, "What of each window counts: all, second-half (default: second-half)")
      ->check(CLI::IsMember({"all", "second-half"}));
  command->add_option("--skip", perplexity.first_scored, "Of one stream: read this many tokens unscored")
      ->capture_default_str();
  command
      ->add_option(
          "--prefill", perplexity.prefill,
          "Tokens at the start of the stream, or of each window, that are a prompt: not scored; the others come "
          "one at a time")
      ->capture_default_str();
  command
      ->add_option("--bins", perplexity.bins, "Curves over the position in the stream or window, in this many points")
      ->capture_default_str();
  command
      ->add_option("--parallel", perplexity.parallel,
                   "Windows and texts that are read together; times are then those of such a batch")
      ->check(CLI::Range(1, kMostParallel))
      ->capture_default_str();
  command->add_option(
      "--chunk", *chunk,
      "Tokens per forward pass; 0: the policy's own (default: 1 for one stream, 0 for windows and prompts)");
  add_report_option(*command, options->report);
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, chunk, &outcome] {
    options->perplexity.chunk =
        chunk->value_or(options->perplexity.window > 0 || options->perplexity.prefill > 0 ? 0 : 1);
    outcome.status = eval_perplexity(*options);
  });
}

}  // namespace kvasir::cli
