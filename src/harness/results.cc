#include "harness/results.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/ordered_json.h"
#include "base/status.h"
#include "tasks/metrics/metric.h"
#include "tasks/metrics/preparation.h"
#include "tasks/metrics/python_text.h"
#include "tasks/plain_text.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

// Returns the index of the largest value, the first of equal ones.
template <class Value>
std::size_t likeliest(const std::vector<TextScore>& scores, Value value) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i)
    if (value(i) > value(best)) best = i;
  return best;
}

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Scores and the clusters of their questions.
struct Values {
  std::vector<double> values;
  std::vector<std::size_t> clusters;

  void add(double value, std::size_t cluster) {
    values.push_back(value);
    clusters.push_back(cluster);
  }
  Mean mean() const { return mean_of(values, clusters); }
};

// Returns len(re.split(r"\s+", text)) of Python: white space that begins or ends the text has a word on its other side,
// an empty one.
std::int64_t count_words(std::string_view text) {
  std::int64_t words = 1;
  bool before = false;  // white space
  while (!text.empty()) {
    const metrics::Character character = metrics::first_character(text);
    text.remove_prefix(character.size);
    const bool space = metrics::is_space(character.code);
    words += space && !before ? 1 : 0;
    before = space;
  }
  return words;
}

}  // namespace

Mean mean_of(const std::vector<double>& values, const std::vector<std::size_t>& clusters) {
  KVASIR_CHECK(values.size() == clusters.size());
  if (values.empty()) return {.error = kUnknown};
  Mean mean{.count = std::ssize(values)};
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  mean.mean = sum / n;
  std::map<std::size_t, double> deviations;
  for (std::size_t i = 0; i < values.size(); ++i) deviations[clusters[i]] += values[i] - mean.mean;
  const auto count = static_cast<double>(deviations.size());
  double squares = 0;
  for (const auto& [cluster, deviation] : deviations) squares += deviation * deviation;
  mean.error = count > 1 ? std::sqrt(count / (count - 1) * squares) / n : kUnknown;
  return mean;
}

Mean mean_of(const std::vector<double>& values) {
  std::vector<std::size_t> each(values.size());
  std::iota(each.begin(), each.end(), std::size_t{0});
  return mean_of(values, each);
}

Mean paired_difference(const std::vector<QuestionResult>& run, const std::vector<QuestionResult>& reference,
                       const std::string& metric) {
  std::map<std::pair<std::size_t, std::size_t>, double> scores;
  for (const QuestionResult& result : reference)
    if (const auto score = result.scores.find(metric); score != result.scores.end())
      scores[{result.item, result.question}] = score->second;
  Values differences;
  for (const QuestionResult& result : run) {
    const auto score = result.scores.find(metric);
    const auto other = scores.find({result.item, result.question});
    if (score != result.scores.end() && other != scores.end())
      differences.add(score->second - other->second, result.cluster);
  }
  return differences.mean();
}

namespace {

// Returns the sum of a figure, as long as all know it.
template <class Sum, class Of>
std::optional<Sum> sum_of(const std::vector<const QuestionAnswer*>& answers, Of of) {
  if (answers.empty()) return {};
  Sum sum = 0;
  for (const QuestionAnswer* answer : answers) {
    const auto value = of(*answer);
    if (!value) return {};
    sum += static_cast<Sum>(*value);
  }
  return sum;
}

template <class Value>
void add_known(Json& json, const char* field, const std::optional<Value>& value) {
  if (value) json[field] = *value;
}

template <class Value>
std::optional<Value> known(const Json& json, const char* field) {
  if (!json.contains(field)) return {};
  return json.at(field).get<Value>();
}

// Adds what lm-evaluation-harness computes from the sums of all texts.
void add_perplexities(const std::vector<QuestionResult>& results, TaskSummary* summary) {
  double log_likelihood = 0, words = 0, bytes = 0;
  for (const QuestionResult& result : results) {
    if (!result.error.empty() || result.answer.scores.empty()) continue;
    log_likelihood += result.answer.scores.front().log_likelihood;
    words += static_cast<double>(result.words);
    bytes += static_cast<double>(result.answer.scores.front().bytes);
  }
  if (words == 0 || bytes == 0) return;
  const std::int64_t count = summary->questions - summary->failed;
  // The errors of ratios of sums are not known.
  summary->metrics["word_perplexity"] = {std::exp(-log_likelihood / words), kUnknown, count};
  summary->metrics["byte_perplexity"] = {std::exp(-log_likelihood / bytes), kUnknown, count};
  summary->metrics["bits_per_byte"] = {-log_likelihood / bytes / std::log(2.0), kUnknown, count};
}

Json to_json(const std::map<std::string, Mean>& metrics) {
  Json json = Json::object();
  for (const auto& [name, mean] : metrics)
    json[name] = {{"mean", mean.mean}, {"stderr", mean.error}, {"count", mean.count}};
  return json;
}

}  // namespace

QuestionResult score_answer(const EvalTask& task, const TaskItem& item, std::size_t index, std::size_t question,
                            QuestionAnswer answer) {
  const Question& asked = item.questions[question];
  QuestionResult result{.item = index,
                        .question = question,
                        .cluster = item.cluster,
                        .id = item.id,
                        .group = item.group,
                        .answer = std::move(answer)};
  for (const TextScore& score : result.answer.scores)
    if (!std::isfinite(score.log_likelihood) && result.answer.status.ok())
      result.answer.status = data_loss("a log-likelihood is not finite");
  const bool answered = result.answer.status.ok();
  if (!answered) result.answer.scores.clear();  // JSON has no NaN
  result.error = answered ? "" : result.answer.status.message();
  result.chance = asked.chance;
  const std::vector<TextScore>& scores = result.answer.scores;
  switch (task.request) {
    case TaskRequest::kGenerate: {
      std::string prediction = answered ? result.answer.text : "";
      for (const std::string& step : task.prepare) prediction = find_preparation(step)->apply(prediction);
      for (const std::string& name : task.metrics)
        result.scores[name] = answered ? find_metric(name)->score({prediction, asked.references, asked.classes}) : 0;
      break;
    }
    case TaskRequest::kChoices: {
      const auto plain = [&](std::size_t i) { return scores[i].log_likelihood; };
      const auto by_length = [&](std::size_t i) {
        return scores[i].log_likelihood /
               static_cast<double>(std::max<std::int64_t>(count_characters(asked.choices[i]), 1));
      };
      result.scores["acc"] = answered && likeliest(scores, plain) == asked.answer ? 1 : 0;
      result.scores["acc_norm"] = answered && likeliest(scores, by_length) == asked.answer ? 1 : 0;
      break;
    }
    case TaskRequest::kRolling:
      result.words = count_words(asked.prompt);
      if (answered) result.answer.scores.front().bytes = std::ssize(asked.prompt);
  }
  return result;
}

TaskSummary summarize(const EvalTask& task, std::vector<QuestionResult> results) {
  std::ranges::sort(results, {}, [](const QuestionResult& r) { return std::tuple(r.item, r.question); });
  TaskSummary summary;
  std::map<std::string, Values> all;
  std::map<std::string, std::map<std::string, Values>> groups;
  std::vector<double> chances;
  std::vector<const QuestionAnswer*> answers;
  for (const QuestionResult& result : results) {
    ++summary.questions;
    summary.wall_seconds += result.wall_seconds;
    for (const auto& [name, score] : result.scores) {
      all[name].add(score, result.cluster);
      if (!result.group.empty()) groups[result.group][name].add(score, result.cluster);
    }
    if (result.chance) chances.push_back(*result.chance);
    if (result.error.empty()) answers.push_back(&result.answer);
  }
  summary.failed = summary.questions - std::ssize(answers);
  for (const auto& [name, values] : all) summary.metrics[name] = values.mean();
  for (const auto& [group, metrics] : groups)
    for (const auto& [name, values] : metrics) summary.groups[group][name] = values.mean();
  if (!chances.empty() && std::ssize(chances) == summary.questions) {
    summary.chance = mean_of(chances).mean;
    summary.judged = task.request == TaskRequest::kChoices ? "acc" : task.metrics.front();
  }
  const auto n = static_cast<double>(answers.size());
  summary.prompt_tokens = sum_of<std::int64_t>(answers, [](const QuestionAnswer& a) { return a.prompt_tokens; });
  summary.answer_tokens = sum_of<std::int64_t>(answers, [](const QuestionAnswer& a) { return a.answer_tokens; });
  summary.shortened = sum_of<std::int64_t>(answers, [](const QuestionAnswer& a) -> std::optional<std::int64_t> {
    if (!a.left_out) return {};
    return *a.left_out > 0 ? 1 : 0;
  });
  if (const auto kept = sum_of<double>(answers, [](const QuestionAnswer& a) { return a.kept; }))
    summary.kept_mean = *kept / n;
  if (const auto bytes = sum_of<double>(answers, [](const QuestionAnswer& a) { return a.kv_bytes; })) {
    summary.kv_bytes_mean = *bytes / n;
    for (const QuestionAnswer* answer : answers)
      summary.kv_bytes_max = std::max(summary.kv_bytes_max.value_or(0), *answer->kv_bytes);
  }
  if (task.request == TaskRequest::kRolling) add_perplexities(results, &summary);
  return summary;
}

AboveChance above_chance(const TaskSummary& summary) {
  const auto judged = summary.metrics.find(summary.judged);
  if (!summary.chance || judged == summary.metrics.end()) return AboveChance::kYes;
  const auto& [mean, error, count] = judged->second;
  if (std::isnan(error)) return AboveChance::kUnknown;
  return mean > *summary.chance && mean - *summary.chance >= 2 * error ? AboveChance::kYes : AboveChance::kNo;
}

Json to_json(const QuestionResult& result) {
  const QuestionAnswer& answer = result.answer;
  Json scores = Json::array();
  for (const TextScore& score : answer.scores)
    scores.push_back({{"log_likelihood", score.log_likelihood},
                      {"tokens", score.tokens},
                      {"bytes", score.bytes},
                      {"greedy", score.greedy}});
  Json json{{"item", result.item}, {"question", result.question}, {"cluster", result.cluster}, {"id", result.id}};
  if (!result.group.empty()) json["group"] = result.group;
  if (!result.error.empty()) json["error"] = result.error;
  json["scores"] = result.scores;
  add_known(json, "chance", result.chance);
  if (result.words > 0) json["words"] = result.words;
  if (!answer.scores.empty()) json["texts"] = std::move(scores);
  if (answer.scores.empty()) json["answer"] = answer.text;
  add_known(json, "prompt_tokens", answer.prompt_tokens);
  add_known(json, "cached_tokens", answer.cached_tokens);
  add_known(json, "left_out", answer.left_out);
  add_known(json, "answer_tokens", answer.answer_tokens);
  add_known(json, "kept", answer.kept);
  add_known(json, "kv_bytes", answer.kv_bytes);
  add_known(json, "prompt_seconds", answer.prompt_seconds);
  json.update({{"seconds", answer.seconds}, {"wall_seconds", result.wall_seconds}});
  return json;
}

Json to_json(const TaskSummary& summary) {
  Json json{{"metrics", to_json(summary.metrics)}};
  if (summary.chance) json["chance"] = *summary.chance;
  Json groups = Json::object();
  for (const auto& [group, metrics] : summary.groups) groups[group] = to_json(metrics);
  if (!groups.empty()) json["groups"] = std::move(groups);
  json.update({{"questions", summary.questions}, {"failed", summary.failed}});
  add_known(json, "shortened", summary.shortened);
  add_known(json, "prompt_tokens", summary.prompt_tokens);
  add_known(json, "answer_tokens", summary.answer_tokens);
  add_known(json, "kept_mean", summary.kept_mean);
  add_known(json, "kv_bytes_mean", summary.kv_bytes_mean);
  add_known(json, "kv_bytes_max", summary.kv_bytes_max);
  json["wall_seconds"] = summary.wall_seconds;
  return json;
}

Result<QuestionResult> question_result_from_json(const Json& json) {
  try {
    QuestionResult result;
    result.item = json.at("item").get<std::size_t>();
    result.question = json.at("question").get<std::size_t>();
    result.cluster = json.value("cluster", result.item);
    result.id = json.at("id").get<std::string>();
    result.group = json.value("group", "");
    result.error = json.value("error", "");
    result.scores = json.at("scores").get<std::map<std::string, double>>();
    result.chance = known<double>(json, "chance");
    result.words = json.value("words", std::int64_t{0});
    result.wall_seconds = json.at("wall_seconds").get<double>();
    QuestionAnswer& answer = result.answer;
    answer.text = json.value("answer", "");
    for (const Json& score : json.value("texts", Json::array()))
      answer.scores.push_back({score.at("log_likelihood").get<double>(), score.at("tokens").get<std::int64_t>(),
                               score.at("bytes").get<std::int64_t>(), score.at("greedy").get<bool>()});
    answer.prompt_tokens = known<std::int64_t>(json, "prompt_tokens");
    answer.cached_tokens = known<std::int64_t>(json, "cached_tokens");
    answer.left_out = known<std::int64_t>(json, "left_out");
    answer.answer_tokens = known<std::int64_t>(json, "answer_tokens");
    answer.kept = known<std::int64_t>(json, "kept");
    answer.kv_bytes = known<std::uint64_t>(json, "kv_bytes");
    answer.prompt_seconds = known<double>(json, "prompt_seconds");
    answer.seconds = json.at("seconds").get<double>();
    return result;
  } catch (const Json::exception& error) {
    return data_loss("a result is damaged: {}", error.what());
  }
}

Json run_key(Json header) {
  if (const auto subject = header.find("subject"); subject != header.end()) subject->erase("threads");
  return header;
}

Status lock_results(int descriptor, bool writes, const std::string& path) {
  // File systems without locks give other errors.
  if (::flock(descriptor, (writes ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return invalid_argument("another run is writing to '{}': wait until it ends, or name another folder", path);
  return {};
}

Result<ResultLog> ResultLog::open(const std::string& path, const Json& header) {
  ResultLog log;
  log.path_ = path;
  log.descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log.descriptor_ < 0 && (errno == EROFS || errno == EACCES)) {
    log.writable_ = errno_status("write to", path);
    log.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (log.descriptor_ < 0) return log.writable_.ok() ? errno_status("open", path) : log.writable_;
  KVASIR_RETURN_IF_ERROR(lock_results(log.descriptor_, log.writable_.ok(), path));
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_file(path, std::size_t{4} << 30));
  const std::string first = dump_line(header);
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole < text.size() && log.writable_.ok() && ::ftruncate(log.descriptor_, static_cast<off_t>(whole)) != 0)
    return errno_status("shorten", path);
  std::string_view left = std::string_view(text).substr(0, whole);
  for (std::size_t number = 1; !left.empty(); ++number) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(line.size() + 1);
    if (number == 1) {
      if (line != first)
        return invalid_argument(
            "'{}' holds results of another run (other model, task, data or options); name another file, or remove it",
            path);
      continue;
    }
    const ParsedOrderedJson parsed = parse_ordered_json(line, {.levels = 16});
    Result<QuestionResult> result = question_result_from_json(parsed.value);
    if (parsed.end != ParsedOrderedJson::End::kDone || !result.ok())
      return data_loss("'{}', line {} is no result; remove that line, and its question is asked again", path, number);
    log.found_.push_back(std::move(*result));
  }
  if (whole > 0 || !log.writable_.ok()) return log;
  const std::string line = first + '\n';
  if (::write(log.descriptor_, line.data(), line.size()) != std::ssize(line)) return errno_status("write", path);
  return log;
}

ResultLog::ResultLog(ResultLog&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      writable_(std::move(other.writable_)),
      found_(std::move(other.found_)) {}

ResultLog& ResultLog::operator=(ResultLog&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(writable_, other.writable_);
  std::swap(found_, other.found_);
  return *this;
}

ResultLog::~ResultLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status ResultLog::add(const QuestionResult& result) {
  const std::string line = dump_line(to_json(result)) + '\n';
  const off_t end = ::lseek(descriptor_, 0, SEEK_END);
  errno = 0;
  if (::write(descriptor_, line.data(), line.size()) == std::ssize(line)) return {};
  if (errno == 0) errno = ENOSPC;  // a part was written
  const Status status = errno_status("write", path_);
  // A part of a line would be joined to the next.
  if (end >= 0 && ::ftruncate(descriptor_, end) != 0) return errno_status("shorten", path_);
  return status;
}

}  // namespace kvasir
