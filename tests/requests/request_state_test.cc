// The states of a request: which transitions there are, what a request holds in each, and that real requests pass
// through all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "requests/request_desk.h"
#include "requests/request_group.h"
#include "sequence/sequence_runner.h"
#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

constexpr RequestState kAllStates[] = {RequestState::kWaiting,     RequestState::kFetching, RequestState::kRunning,
                                       RequestState::kSwappingOut, RequestState::kSwapped,  RequestState::kSwappingIn,
                                       RequestState::kEnded};

// A request that is moved by hand. Its sequence is a fork of one that has seen some tokens.
class LoneRequest {
 public:
  explicit LoneRequest(const std::shared_ptr<LoadedModel>& model)
      : model_(model),
        cache_(*new_cache(model, std::uint64_t{1} << 26)),
        file_(*SpillFile::create(std::make_unique<FaultyFile>(no_fault), 16 * SpillFile::kPartBytes)),
        runner_(model, cache_, std::move(*make_policy("full"))) {
    const std::vector<TokenId> tokens = random_tokens(40, crowd_spec().vocab, 5);
    const Status fed = runner_.feed(
        tokens, 0, Logits::kNone, [](auto...) { return true; }, Source::kPrompt);
    EXPECT_TRUE(fed.ok()) << fed.message();
    group_.policy = std::move(*make_policy("full"));
    group_.shape = cache_->shape();
    group_.requests.push_back(std::make_unique<Request>(&group_, 0, TextState()));
    request().set_task(tokens, Generation(*model->tokenizer, GenerateOptions(), {}, tokens));
  }

  Request& request() { return *group_.requests.front(); }

  // Brings it to a state by transitions of which each is allowed.
  void bring_to(RequestState state) {
    switch (state) {
      case RequestState::kWaiting: return;
      case RequestState::kFetching: return begin_fetch();
      case RequestState::kRunning: return start();
      case RequestState::kSwappingOut: bring_to(RequestState::kRunning); return begin_swap_out();
      case RequestState::kSwapped:
        bring_to(RequestState::kSwappingOut);
        for (int i = 0; i < 8 && request().swap().state() == SwappedSequence::State::kLeaving; ++i) {
          file_->poll(std::chrono::milliseconds(0));
          request().swap().advance();
        }
        return request().end_swap_out();
      case RequestState::kSwappingIn: bring_to(RequestState::kSwapped); return begin_swap_in();
      case RequestState::kEnded: return end();
    }
  }

  void begin_fetch() { request().begin_fetch(std::make_shared<PrefixFetch>()); }
  void start() { request().start(sequence()); }
  void begin_swap_out() { request().begin_swap_out(SwappedSequence::leave(file_.get(), runner_.whole())); }
  void begin_swap_in() {
    if (!request().is(RequestState::kSwapped)) return request().begin_swap_in(sequence());
    auto arriving = request().swap().arrive(model_, cache_, std::move(*make_policy("full")));
    ASSERT_TRUE(arriving.ok()) << arriving.status().message();
    request().begin_swap_in(std::move(*arriving));
  }
  void end() { static_cast<void>(request().end()); }

 private:
  std::unique_ptr<Sequence> sequence() { return std::move(*runner_.whole().fork()); }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<SpillFile> file_;
  SequenceRunner runner_;
  RequestGroup group_;
};

struct Transition {
  const char* name;
  std::function<void(LoneRequest&)> call;
  std::vector<std::pair<RequestState, RequestState>> allowed;  // from, to
};

// The table of request.h.
std::vector<Transition> transitions() {
  using enum RequestState;
  return {
      {"begin_fetch", [](LoneRequest& lone) { lone.begin_fetch(); }, {{kWaiting, kFetching}}},
      {"end_fetch", [](LoneRequest& lone) { lone.request().end_fetch(); }, {{kFetching, kWaiting}}},
      {"start", [](LoneRequest& lone) { lone.start(); }, {{kWaiting, kRunning}}},
      {"begin_swap_out", [](LoneRequest& lone) { lone.begin_swap_out(); }, {{kRunning, kSwappingOut}}},
      {"end_swap_out", [](LoneRequest& lone) { lone.request().end_swap_out(); }, {{kSwappingOut, kSwapped}}},
      {"begin_swap_in", [](LoneRequest& lone) { lone.begin_swap_in(); }, {{kSwapped, kSwappingIn}}},
      {"end_swap_in", [](LoneRequest& lone) { lone.request().end_swap_in(); }, {{kSwappingIn, kRunning}}},
      {"cancel_swap_in", [](LoneRequest& lone) { lone.request().cancel_swap_in(); }, {{kSwappingIn, kSwapped}}},
      {"release",
       [](LoneRequest& lone) { lone.request().release(); },
       {{kRunning, kWaiting}, {kSwappingOut, kWaiting}, {kSwapped, kWaiting}, {kSwappingIn, kWaiting}}},
      {"end",
       [](LoneRequest& lone) { lone.end(); },
       {{kWaiting, kEnded}, {kFetching, kEnded}, {kRunning, kEnded}, {kSwappingOut, kEnded}, {kSwapped, kEnded}}},
  };
}

bool holds_pages_in(RequestState state) {
  return state == RequestState::kRunning || state == RequestState::kSwappingOut || state == RequestState::kSwappingIn;
}

class RequestStateTest : public testing::Test {
 protected:
  TemporaryFile file_{make_random_model(crowd_spec())};
  std::shared_ptr<LoadedModel> model_ = load(file_.path(), {.threads = 1, .page_slots = 16});
};

TEST_F(RequestStateTest, EachAllowedTransitionLeadsToItsState) {
  for (const Transition& transition : transitions())
    for (const auto& [from, to] : transition.allowed) {
      SCOPED_TRACE(std::string(transition.name) + " from " + std::string(request_state_name(from)));
      LoneRequest lone(model_);
      ASSERT_NO_FATAL_FAILURE(lone.bring_to(from));
      ASSERT_EQ(lone.request().state(), from);
      EXPECT_EQ(lone.request().holds_pages(), holds_pages_in(from));
      transition.call(lone);
      EXPECT_EQ(lone.request().state(), to);
      EXPECT_EQ(lone.request().holds_pages(), holds_pages_in(to));
    }
}

TEST_F(RequestStateTest, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (const RequestState state : kAllStates) names.insert(request_state_name(state));
  EXPECT_EQ(names.size(), std::size(kAllStates));
  EXPECT_EQ(names.count("unknown"), 0u);
}

// The end hands over the sequence of a request that held one, for the prefix cache or the session.
TEST_F(RequestStateTest, TheEndHandsOverTheSequence) {
  for (const RequestState from : kAllStates) {
    if (from == RequestState::kSwappingIn || from == RequestState::kEnded) continue;
    SCOPED_TRACE(std::string(request_state_name(from)));
    LoneRequest lone(model_);
    ASSERT_NO_FATAL_FAILURE(lone.bring_to(from));
    EXPECT_EQ(lone.request().end().sequence != nullptr, holds_pages_in(from));
  }
}

using RequestStateDeathTest = RequestStateTest;

TEST_F(RequestStateDeathTest, EveryOtherTransitionIsRefused) {
  int refused = 0;
  for (const Transition& transition : transitions())
    for (const RequestState from : kAllStates) {
      if (std::ranges::any_of(transition.allowed, [&](const auto& pair) { return pair.first == from; })) continue;
      SCOPED_TRACE(std::string(transition.name) + " from " + std::string(request_state_name(from)));
      LoneRequest lone(model_);
      ASSERT_NO_FATAL_FAILURE(lone.bring_to(from));
      EXPECT_DEATH(transition.call(lone), "internal error");
      ++refused;
    }
  EXPECT_EQ(refused, 70 - 17);
}

// Requests of a queue in little memory, some of whom are swapped. kFetching: see prefix_tiers_test.cc.
TEST_F(RequestStateTest, RequestsOfAQueuePassThroughAllStates) {
  std::set<RequestState> seen;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 16; ++i) {
      requests.push_back(random_request(random, policies_for_requests(), 60));
      most = std::max(most, alone(model_, requests.back()).kv.bytes_peak);
    }
    Desk desk(model_, 2 * most, {.prompt_rows = 30, .running = 10, .ahead = 0});
    desk.queue().swap_to(
        std::move(*SpillFile::create(std::make_unique<FaultyFile>(no_fault, 3), 256 * SpillFile::kPartBytes)), true);
    std::vector<RequestId> ids;
    for (const RequestOptions& options : requests) ids.push_back(desk.add(options));
    for (int polls = 0; desk.queue().unfinished() > 0; ++polls) {
      ASSERT_LT(polls, 10000);
      for (const RequestId id : ids)
        for (int sample = 0; const Request* request = desk.queue().find(id, sample); ++sample) {
          seen.insert(request->state());
          ASSERT_EQ(request->holds_pages(), holds_pages_in(request->state()));
          ASSERT_EQ(request->is(RequestState::kEnded), desk.told(id, sample).ended);
        }
      ASSERT_NO_FATAL_FAILURE(desk.poll());
    }
    desk.expect_all_as_alone();
  }
  using enum RequestState;
  const std::set<RequestState> without_store = {kWaiting, kRunning, kSwappingOut, kSwapped, kSwappingIn, kEnded};
  EXPECT_EQ(seen, without_store);
}

}  // namespace
}  // namespace kvasir::test
