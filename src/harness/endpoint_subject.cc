#include "harness/endpoint_subject.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/ordered_json.h"
#include "base/status.h"
#include "harness/http_post.h"
#include "tasks/golden_text.h"
#include "tasks/plain_text.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kTries = 6;  // of a request for which the server is too busy, or that does not reach it
constexpr std::chrono::seconds kFirstWait{1};  // before the second try; doubled before each later one
constexpr double kLongestWait = 300;           // seconds that a server's Retry-After is heeded

// A request under way or to be sent.
struct Call {
  enum class Kind {
    kAnswer,  // the answer to a question
    kCount,   // the number of tokens of a prompt, for the scores of what follows it
    kScore,   // the log-likelihood of a text behind the prompt, or of a rolling text
  };
  Kind kind = Kind::kAnswer;
  std::size_t item = 0;
  std::size_t question = 0;
  std::size_t text = 0;
  std::int64_t prompt_tokens = 0;  // kScore: tokens before the first that is scored
  int tries = 0;
  Clock::time_point not_before;
};

struct OpenQuestion {
  QuestionAnswer answer;
  std::size_t calls = 0;  // whose answers are missing
};

// What a server says that is not an answer, in one line.
std::string error_text(const HttpAnswer& http, const Json& json) {
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_string()) return error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return error["message"].get<std::string>();
  }
  return http.body.substr(0, 300);
}

std::int64_t count_of(const Json& usage, const char* field) {
  return usage.is_object() && usage.contains(field) && usage[field].is_number_integer()
             ? usage[field].get<std::int64_t>()
             : -1;
}

// Whether an answer is that of a gateway whose server did not answer.
bool is_of_gateway(long code) {
  return code == 502 || code == 504;
}

bool is_busy(long code) {
  return code == 429 || code == 503 || is_of_gateway(code);
}

class EndpointSubject : public Subject {
 public:
  EndpointSubject(EndpointOptions options, std::unique_ptr<HttpPost> http)
      : options_(std::move(options)), http_(std::move(http)) {}

  Json identity() const override {
    Json identity{{"endpoint", shown_url(options_.url)}, {"model", options_.model}};
    if (!options_.body.is_null()) identity["body"] = options_.body;
    return identity;
  }

  Status ask(std::span<const TaskItem* const> items, const AskOptions& ask, const OnAnswer& on_answer,
             const std::function<bool()>& tick) override {
    items_ = items;
    ask_ = &ask;
    waiting_.clear();
    running_.clear();
    open_.assign(items.size(), {});
    std::size_t next = 0;  // item
    Status failure;
    bool stopped = false;
    const auto take = [&](std::size_t id, HttpAnswer answer) {
      const auto found = running_.find(id);
      if (found == running_.end()) return;  // of a run that ended early
      Call call = found->second;
      running_.erase(found);
      if (stopped || !failure.ok()) return;
      reached_ = reached_ || answer.status.ok();
      const bool busy = !answer.status.ok() || is_busy(answer.code);
      // A server that hangs would hang again.
      if (busy && reached_ && !answer.timed_out && ++call.tries < kTries) {
        call.not_before = Clock::now() + pause_before(call.tries, answer.retry_after);
        waiting_.push_back(call);
        return;
      }
      // No answer is better than one that a server which has ended did not give.
      if (busy) {
        failure = !answer.status.ok()
                      ? answer.status
                      : make_status(StatusCode::kIo,
                                    "{} {} (HTTP {}), at the last of {} tries too; ask fewer "
                                    "questions at a time with --parallel, or later",
                                    shown_url(options_.url),
                                    is_of_gateway(answer.code) ? "is not reached" : "is too busy", answer.code, kTries);
        return;
      }
      OpenQuestion& question = open_[call.item][call.question];
      if (question.answer.status.ok()) question.answer.status = read(call, answer, question);
      if (--question.calls == 0 && !on_answer(call.item, call.question, std::move(question.answer))) stopped = true;
    };
    while (failure.ok() && !stopped && (next < items.size() || !waiting_.empty() || !running_.empty())) {
      const auto most = static_cast<std::size_t>(ask.parallel);
      while (next < items.size() && waiting_.size() + running_.size() < most) begin_item(next++);
      for (std::size_t i = waiting_.size(); i > 0 && running_.size() < most; --i) {
        const Call call = waiting_.front();
        waiting_.pop_front();
        if (call.not_before > Clock::now())
          waiting_.push_back(call);
        else
          send(call);
      }
      http_->wait(take);
      if (tick && !tick()) stopped = true;
    }
    return stopped ? Status(StatusCode::kCancelled, "") : failure;
  }

 private:
  // Returns how long to wait before try `tries` + 1: what the server asks for, within bounds, and no less than doubled
  // pauses.
  static Clock::duration pause_before(int tries, double retry_after) {
    const Clock::duration asked =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(retry_after, kLongestWait)));
    return std::max<Clock::duration>(asked, kFirstWait * (1 << (tries - 1)));
  }

  void begin_item(std::size_t index) {
    const TaskItem& item = *items_[index];
    open_[index].resize(item.questions.size());
    for (std::size_t q = 0; q < item.questions.size(); ++q) {
      OpenQuestion& open = open_[index][q];
      Call call{.item = index, .question = q};
      if (ask_->request == TaskRequest::kChoices) {
        open.answer.scores.resize(item.questions[q].choices.size());
        call.kind = Call::Kind::kCount;
      } else if (ask_->request == TaskRequest::kRolling) {
        open.answer.scores.resize(1);
        call.kind = Call::Kind::kScore;
      }
      add(open, call);
    }
  }

  void add(OpenQuestion& open, const Call& call) {
    ++open.calls;
    waiting_.push_back(call);
  }

  void send(const Call& call) {
    const std::size_t id = next_id_++;
    running_[id] = call;
    http_->begin(id, options_.url + (ask_->chat ? "/chat/completions" : "/completions"), dump_line(body_of(call)));
  }

  // Returns what is in front of a question: the context, and in a conversation the questions before it with their
  // answers.
  std::string before(const Call& call) const {
    const TaskItem& item = *items_[call.item];
    std::string text = item.context;
    if (ask_->reading == Reading::kConversation)
      for (std::size_t q = 0; q < call.question; ++q)
        text += item.questions[q].prompt + item.questions[q].answer_prefix + golden_text(item.questions[q]);
    return text;
  }

  Json body_of(const Call& call) const {
    const Question& asked = items_[call.item]->questions[call.question];
    Json body{{"temperature", 0}, {"seed", 1}};
    if (!options_.model.empty()) body["model"] = options_.model;
    const std::string prompt = before(call) + asked.prompt;
    if (call.kind == Call::Kind::kAnswer) {
      body["max_tokens"] = ask_->max_tokens;
      if (!ask_->stop.empty()) body["stop"] = ask_->stop;
      if (ask_->min_tokens > 0) body["min_tokens"] = ask_->min_tokens;
      if (ask_->chat) {
        body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
        if (!asked.answer_prefix.empty())
          body["messages"].push_back({{"role", "assistant"}, {"content", asked.answer_prefix}});
      } else {
        body["prompt"] = prompt + asked.answer_prefix;
      }
    } else {
      body["max_tokens"] = 1;  // some servers refuse 0
      body["prompt"] = prompt + asked.answer_prefix;
      if (call.kind == Call::Kind::kScore) {
        body["echo"] = true;
        body["logprobs"] = 1;
        if (ask_->request == TaskRequest::kChoices)
          body["prompt"] = prompt + asked.answer_prefix + asked.choices[call.text];
      } else {
        // White space that ends a prompt belongs to what is scored behind it.
        const std::string whole = prompt + asked.answer_prefix;
        body["prompt"] = whole.substr(0, size_without_end_space(whole));
      }
    }
    if (options_.body.is_object()) body.update(options_.body);
    return body;
  }

  // Reads a server's answer. Errors: what the server says, or what its answer lacks.
  Status read(const Call& call, const HttpAnswer& http, OpenQuestion& open) {
    const Json json = parse_ordered_json(http.body, {.levels = 64}).value;
    if (http.code != 200)
      return make_status(StatusCode::kInvalidArgument, "the server answers {}: {}", http.code, error_text(http, json));
    try {
      const Json& choice = json.at("choices").at(0);
      const Json usage = json.value("usage", Json());
      QuestionAnswer& answer = open.answer;
      answer.seconds += http.seconds;
      if (count_of(usage, "prompt_tokens") >= 0) answer.prompt_tokens = count_of(usage, "prompt_tokens");
      if (call.kind == Call::Kind::kScore) return read_scores(call, choice, usage, answer);
      if (call.kind == Call::Kind::kCount) {
        if (count_of(usage, "prompt_tokens") < 1)
          return unsupported("the server does not say how many tokens a prompt has (usage.prompt_tokens)");
        for (std::size_t t = 0; t < answer.scores.size(); ++t) {
          Call score{.kind = Call::Kind::kScore, .item = call.item, .question = call.question, .text = t};
          score.prompt_tokens = count_of(usage, "prompt_tokens");
          add(open, score);
        }
        return {};
      }
      const Json& text = ask_->chat ? choice.at("message").at("content") : choice.at("text");
      answer.text = text.is_string() ? text.get<std::string>() : "";
      if (count_of(usage, "completion_tokens") >= 0) answer.answer_tokens = count_of(usage, "completion_tokens");
    } catch (const Json::exception&) {
      return data_loss("the server's answer is not one of the API: {}", http.body.substr(0, 200));
    }
    return {};
  }

  // Returns whether tokens [first, end) spell the text. Tokens that are parts of characters spell nothing: any do then.
  static bool spell(const Json& tokens, std::int64_t first, std::int64_t end, const std::string& text) {
    std::string joined;
    for (std::int64_t i = first; i < end; ++i) {
      const auto& token = tokens.at(static_cast<std::size_t>(i)).get_ref<const std::string&>();
      if (token.empty() || token.starts_with("bytes:") || token.find("\xEF\xBF\xBD") != std::string::npos) return true;
      joined += token;
    }
    return joined == text;
  }

  // Returns the index of the first token of the prompt that is scored, or -1 where the tokens are not those of the
  // text. Some servers count BOS among a prompt's tokens and do not report it.
  static std::int64_t first_scored(const Json& tokens, std::int64_t first, std::int64_t count,
                                   const std::string& text) {
    for (const std::int64_t shift : {0, 1})
      if (first - shift >= 1 && first - shift + count <= std::ssize(tokens) &&
          spell(tokens, first - shift, first - shift + count, text))
        return first - shift;
    return -1;
  }

  // Returns how many tokens a text of its own has, of the `prompt` that the server counts, by what they spell: -1 where
  // they do not spell it.
  static std::int64_t tokens_of_text(const Json& tokens, std::int64_t prompt, const std::string& text) {
    const auto spells = [&](std::int64_t first, std::int64_t end) {
      return end <= std::ssize(tokens) && (spell(tokens, first, end, text) || spell(tokens, first, end, " " + text));
    };
    if (spells(0, prompt) || spells(1, prompt)) return prompt;
    return prompt > 1 && spells(0, prompt - 1) ? prompt - 1 : -1;
  }

  // Returns the part of a prompt that is scored: a choice, with the white space before it.
  std::string scored_text(const Call& call) const {
    const Question& asked = items_[call.item]->questions[call.question];
    const std::string prompt = asked.prompt + asked.answer_prefix;
    return prompt.substr(size_without_end_space(prompt)) + asked.choices[call.text];
  }

  // Sums the log-probabilities of a choice's tokens, or of all tokens of a text but the first, which nothing is before.
  Status read_scores(const Call& call, const Json& choice, const Json& usage, QuestionAnswer& answer) const {
    if (!choice.contains("logprobs") || !choice["logprobs"].is_object() ||
        !choice["logprobs"].contains("token_logprobs"))
      return unsupported(
          "the server reports no log-probabilities of prompts, which this task needs (echo with logprobs)");
    const Json& reported = choice["logprobs"];
    const Json& values = reported.at("token_logprobs");
    const std::int64_t prompt = count_of(usage, "prompt_tokens");
    if (prompt < 1) return unsupported("the server does not say how many tokens a prompt has (usage.prompt_tokens)");
    std::int64_t first = 1, count = 0;
    if (ask_->request == TaskRequest::kRolling) {
      count = tokens_of_text(reported.at("tokens"), prompt, items_[call.item]->questions[call.question].prompt) - 1;
      if (count < 0) return unsupported("the tokens that the server reports of the prompt do not spell the text");
    } else {
      count = prompt - call.prompt_tokens;
      first = count < 1 ? -1 : first_scored(reported.at("tokens"), call.prompt_tokens, count, scored_text(call));
      if (first < 1) return unsupported("the tokens that the server reports of the prompt do not spell the choice");
    }
    if (first + count > std::ssize(values) || count < 1)
      return unsupported("the server reports no log-probabilities of the prompt (echo with logprobs)");
    TextScore& score = answer.scores[call.text];
    for (std::int64_t i = first; i < first + count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (!values.at(at).is_number() || values.at(at).get<double>() > 0)
        return data_loss("the server gives token {} of the prompt no log-probability", i);
      const double value = values.at(at).get<double>();
      score.log_likelihood += value;
      ++score.tokens;
      double best = value;
      if (reported.contains("top_logprobs") && reported["top_logprobs"].at(at).is_object())
        for (const auto& [token, likely] : reported["top_logprobs"].at(at).items())
          best = std::max(best, likely.get<double>());
      score.greedy = score.greedy && value >= best;
    }
    if (ask_->request == TaskRequest::kChoices) score.bytes = std::ssize(scored_text(call));
    answer.answer_tokens = answer.answer_tokens.value_or(0) + score.tokens;
    return {};
  }

  EndpointOptions options_;
  std::unique_ptr<HttpPost> http_;
  std::span<const TaskItem* const> items_;
  const AskOptions* ask_ = nullptr;
  std::vector<std::vector<OpenQuestion>> open_;  // [item][question]
  std::deque<Call> waiting_;
  std::map<std::size_t, Call> running_;
  std::size_t next_id_ = 0;
  bool reached_ = false;  // the server has answered once
};

}  // namespace

Result<std::unique_ptr<Subject>> make_endpoint_subject(EndpointOptions options) {
  if (!options.url.starts_with("http://") && !options.url.starts_with("https://"))
    return invalid_argument("the address of an endpoint begins with http:// or https://, not '{}'",
                            options.url.substr(0, 100));
  while (options.url.ends_with('/')) options.url.pop_back();
  if (!options.url.ends_with("/v1")) options.url += "/v1";
  std::vector<std::string> headers = {"Content-Type: application/json", "Expect:"};
  if (!options.key.empty()) headers.push_back("Authorization: Bearer " + options.key);
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<HttpPost> http, HttpPost::create(headers, options.timeout_seconds));
  return std::unique_ptr<Subject>(std::make_unique<EndpointSubject>(std::move(options), std::move(http)));
}

}  // namespace kvasir
