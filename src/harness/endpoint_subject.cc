#include "harness/endpoint_subject.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/ordered_json.h"
#include "base/status.h"
#include "harness/http_post.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTries = 5;  // of a request that the server was too busy for, or that did not reach it

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A request for one text: the answer to a question, or the log-likelihood of one of its texts.
struct Call {
  std::size_t item = 0;
  std::size_t question = 0;
  std::size_t text = 0;
  std::size_t scored_from = 0;  // characters of the prompt before what is scored
  std::size_t prompt_characters = 0;
  std::string body;
  int tries = 0;
};

struct OpenQuestion {
  QuestionAnswer answer;
  std::size_t calls = 0;  // without an answer
};

class EndpointSubject : public Subject {
 public:
  EndpointSubject(EndpointOptions options, std::unique_ptr<HttpPost> http)
      : options_(std::move(options)), http_(std::move(http)) {}

  Json identity() const override { return {{"endpoint", options_.url}, {"model", options_.model}}; }

  Status ask(std::span<const TaskItem> items, const AskOptions& ask, const OnAnswer& on_answer,
             const std::function<bool()>& tick) override {
    if (ask.reading == Reading::kContextFirst)
      return unsupported(
          "an endpoint reads a context and its question together; --reading context-first needs a model");
    if (!ask.policy.empty() || !ask.codec.empty())
      return invalid_argument("an endpoint has its own cache; give what it reads with --body");
    calls_.clear();
    std::deque<std::size_t> waiting;
    std::vector<std::vector<OpenQuestion>> open(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      open[i].resize(items[i].questions.size());
      for (std::size_t q = 0; q < open[i].size(); ++q) add_calls(items[i], i, q, ask, open[i][q]);
    }
    for (std::size_t c = 0; c < calls_.size(); ++c) waiting.push_back(c);
    Status failure;
    bool stopped = false;
    const auto take = [&](std::size_t c, HttpAnswer answer) {
      Call& call = calls_[c];
      const bool busy = !answer.status.ok() || answer.code == 429 || answer.code == 503;
      if (busy && ++call.tries < kTries) {
        waiting.push_back(c);
        return;
      }
      if (!answer.status.ok()) failure = answer.status;
      OpenQuestion& question = open[call.item][call.question];
      if (question.answer.status.ok()) question.answer.status = read(call, ask, answer, question.answer);
      if (--question.calls == 0 && !on_answer(call.item, call.question, std::move(question.answer))) stopped = true;
    };
    while (failure.ok() && !stopped && (!waiting.empty() || http_->running() > 0)) {
      while (!waiting.empty() && http_->running() < static_cast<std::size_t>(ask.parallel)) {
        http_->begin(waiting.front(), address(ask), calls_[waiting.front()].body);
        waiting.pop_front();
      }
      http_->wait(take);
      if (tick && !tick()) stopped = true;
    }
    return stopped ? Status(StatusCode::kCancelled, "") : failure;
  }

 private:
  std::string address(const AskOptions& ask) const {
    return options_.url + (ask.chat ? "/chat/completions" : "/completions");
  }

  void add_calls(const TaskItem& item, std::size_t index, std::size_t question, const AskOptions& ask,
                 OpenQuestion& open) {
    std::string before = item.context;
    if (ask.reading == Reading::kConversation)
      for (std::size_t q = 0; q < question; ++q)
        before += item.questions[q].prompt + item.questions[q].answer_prefix + " " + item.questions[q].golden + "\n";
    const Question& asked = item.questions[question];
    Json body = Json::object();
    if (!options_.model.empty()) body["model"] = options_.model;
    body["temperature"] = 0;
    body["seed"] = 1;
    const auto add = [&](std::size_t text, std::size_t from, std::size_t characters_of) {
      if (options_.body.is_object()) body.update(options_.body);
      calls_.push_back({index, question, text, from, characters_of, dump(body), 0});
      ++open.calls;
    };
    if (ask.request == TaskRequest::kGenerate) {
      body["max_tokens"] = ask.max_tokens;
      if (!ask.stop.empty()) body["stop"] = ask.stop;
      if (ask.chat) {
        body["messages"] = Json::array({{{"role", "user"}, {"content", before + asked.prompt}}});
        if (!asked.answer_prefix.empty())
          body["messages"].push_back({{"role", "assistant"}, {"content", asked.answer_prefix}});
      } else {
        body["prompt"] = before + asked.prompt + asked.answer_prefix;
      }
      return add(0, 0, 0);
    }
    body["max_tokens"] = 1;  // some servers refuse 0
    body["echo"] = true;
    body["logprobs"] = 1;
    const std::string prompt = before + asked.prompt + asked.answer_prefix;
    const std::size_t last = prompt.find_last_not_of(" \t\r\n\v\f");
    const std::size_t end = last == std::string::npos ? 0 : last + 1;
    const bool rolling = ask.request == TaskRequest::kRolling;
    open.answer.scores.resize(rolling ? 1 : asked.choices.size());
    for (std::size_t t = 0; t < open.answer.scores.size(); ++t) {
      const std::string whole = rolling ? prompt : prompt + asked.choices[t];
      body["prompt"] = whole;
      add(t, rolling ? 0 : characters(std::string_view(whole).substr(0, end)), characters(whole));
    }
  }

  // Reads a server's answer into `answer`. Errors: what the server says, or what its answer lacks.
  static Status read(const Call& call, const AskOptions& ask, const HttpAnswer& http, QuestionAnswer& answer) {
    const Json json = parse_ordered_json(http.body, {.levels = 64}).value;
    if (!http.status.ok()) return http.status;
    if (http.code != 200) {
      std::string why = http.body.substr(0, 300);
      if (json.is_object() && json.contains("error") && json["error"].is_object())
        why = json["error"].value("message", why);
      return make_status(StatusCode::kInvalidArgument, "the server answers {}: {}", http.code, why);
    }
    try {
      const Json& choice = json.at("choices").at(0);
      if (json.contains("usage") && json["usage"].is_object()) {
        answer.prompt_tokens = json["usage"].value("prompt_tokens", std::int64_t{0});
        answer.answer_tokens = json["usage"].value("completion_tokens", std::int64_t{0});
      }
      answer.seconds = http.seconds;
      if (ask.request != TaskRequest::kGenerate) return read_scores(call, choice, answer);
      const Json& text = ask.chat ? choice.at("message").at("content") : choice.at("text");
      answer.text = text.is_string() ? text.get<std::string>() : "";
    } catch (const Json::exception&) {
      return data_loss("the server's answer is not one of the API: {}", http.body.substr(0, 200));
    }
    return {};
  }

  static Status read_scores(const Call& call, const Json& choice, QuestionAnswer& answer) {
    if (!choice.contains("logprobs") || !choice["logprobs"].is_object() ||
        !choice["logprobs"].contains("token_logprobs"))
      return unsupported(
          "the server reports no log-probabilities of prompts, which this task needs (echo with logprobs)");
    const Json& reported = choice["logprobs"];
    const Json& values = reported.at("token_logprobs");
    const Json& tokens = reported.at("tokens");
    const Json& offsets = reported.at("text_offset");
    TextScore& score = answer.scores[call.text];
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto offset = offsets.at(i).get<std::size_t>();
      if (offset < call.scored_from || offset >= call.prompt_characters || values.at(i).is_null()) continue;
      const double value = values.at(i).get<double>();
      score.log_likelihood += value;
      ++score.tokens;
      score.bytes += static_cast<std::int64_t>(tokens.at(i).get_ref<const std::string&>().size());
      double best = value;
      if (reported.contains("top_logprobs") && reported["top_logprobs"].at(i).is_object())
        for (const auto& [token, likely] : reported["top_logprobs"].at(i).items())
          best = std::max(best, likely.get<double>());
      score.greedy = score.greedy && value >= best;
    }
    answer.answer_tokens = score.tokens;
    if (score.tokens > 0) return {};
    return unsupported("the server reports no log-probabilities of the prompt's last tokens (echo with logprobs)");
  }

  EndpointOptions options_;
  std::unique_ptr<HttpPost> http_;
  std::vector<Call> calls_;
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
