#include "server/admin/key_gate.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <utility>

#include "tenants/key_file.h"
#include "tenants/test_folder.h"

namespace kvasir::server {
namespace {

using std::chrono::seconds;
using tenants::ApiKey;
using tenants::KeyFile;
using tenants::Tenant;

class Refusals final : public TrafficObserver {
 public:
  void on_refused(std::string_view reason, std::string_view /*address*/, std::string_view /*path*/) override {
    reasons.emplace_back(reason);
  }
  std::vector<std::string> reasons;
};

class KeyGateTest : public ::testing::Test {
 protected:
  KeyGateTest() {
    file_.secret = tenants::random_secret();
    for (const char* name : {"a", "b"}) {
      file_.tenants.emplace_back().name = name;
      ApiKey& key = file_.keys.emplace_back();
      key.id = std::string("id-") + name;
      key.tenant = name;
      key.hash = tenants::api_key_hash(file_.secret, std::string("key-of-") + name);
      key.created = 1;
    }
    file_.tenants[1].priority = 3;
    save();
  }

  void save() {
    const Status saved = tenants::save_key_file(path_, file_);
    ASSERT_TRUE(saved.ok()) << saved.message();
  }

  void open() {
    KeyGate::Options options;
    options.path = path_;
    options.log = [this](const std::string& line) { log_.push_back(line); };
    options.on_quotas = [this](const std::vector<QuotaChange>& changes) { quotas_ = changes; };
    options.on_limited = [this](const std::string& tenant) { limited_.push_back(tenant); };
    options.now = [this] { return now_; };
    options.steady = [this] { return steady_; };
    Result<std::unique_ptr<KeyGate>> gate = KeyGate::open(std::move(options));
    ASSERT_TRUE(gate.ok()) << gate.status().message();
    gate_ = std::move(*gate);
    gate_->report_to(&refusals_);
  }

  std::optional<Refusal> check(const std::string& authorization, const std::string& method = "POST") {
    HttpRequest request;
    request.method = method;
    if (!authorization.empty()) request.fields.emplace_back("authorization", authorization);
    caller_ = {};
    return gate_->check(request, caller_);
  }
  int http(const std::string& authorization, const std::string& method = "POST") {
    const std::optional<Refusal> refusal = check(authorization, method);
    return refusal ? refusal->http : 200;
  }

  test::TestFolder folder_;
  std::string path_ = folder_.file("keys.toml");
  KeyFile file_;
  std::int64_t now_ = 1'800'000'000;
  tenants::RateLimiter::Time steady_{seconds(1000)};
  std::vector<std::string> log_, limited_;
  std::vector<QuotaChange> quotas_;
  Refusals refusals_;
  Caller caller_;
  std::unique_ptr<KeyGate> gate_;
};

TEST_F(KeyGateTest, SaysWhoAsks) {
  open();
  EXPECT_EQ(http("Bearer key-of-b"), 200);
  EXPECT_EQ(caller_.tenant, "b");
  EXPECT_EQ(caller_.tenant_number, 2);
  EXPECT_EQ(caller_.priority, 3);
  const std::string salt = caller_.salt;
  EXPECT_EQ(salt.size(), 43U);
  EXPECT_EQ(http("bearer   key-of-a "), 200);
  EXPECT_EQ(caller_.tenant, "a");
  EXPECT_NE(caller_.salt, salt);
}

TEST_F(KeyGateTest, RefusesAllElseAndDoesNotSayWhy) {
  file_.keys[0].revoked = 5;
  file_.keys[1].expires = now_ - 1;
  save();
  open();
  const std::optional<Refusal> unknown = check("Bearer key-of-nobody");
  ASSERT_TRUE(unknown.has_value());
  EXPECT_EQ(unknown->http, 401);
  EXPECT_EQ(unknown->code, "invalid_api_key");
  EXPECT_EQ(unknown->fields, (HttpFields{{"WWW-Authenticate", "Bearer"}}));
  EXPECT_EQ(check("Bearer key-of-a")->message, unknown->message);  // revoked
  EXPECT_EQ(check("Bearer key-of-b")->message, unknown->message);  // expired
  EXPECT_EQ(caller_.tenant, "");
  for (const char* odd : {"", "Bearer", "Bearer ", "Basic key-of-a", "key-of-a", "Bearerkey-of-a"}) {
    const std::optional<Refusal> refusal = check(odd);
    ASSERT_TRUE(refusal.has_value()) << odd;
    EXPECT_EQ(refusal->http, 401);
    EXPECT_EQ(refusal->message.find("key-of"), std::string::npos);
  }
  EXPECT_EQ(refusals_.reasons.size(), 9U);
  EXPECT_EQ(refusals_.reasons.front(), "unauthorized");
}

TEST_F(KeyGateTest, RevocationAndNewKeysTakeEffectWhenTheFileChanges) {
  open();
  EXPECT_EQ(http("Bearer key-of-a"), 200);
  file_.keys[0].revoked = now_;
  ApiKey& key = file_.keys.emplace_back(file_.keys[1]);
  key.id = "id-c";
  key.hash = tenants::api_key_hash(file_.secret, "key-of-c");
  save();
  EXPECT_EQ(http("Bearer key-of-a"), 200);  // not read yet
  gate_->reload_if_changed();
  EXPECT_EQ(http("Bearer key-of-a"), 401);
  EXPECT_EQ(http("Bearer key-of-c"), 200);
  EXPECT_EQ(caller_.tenant_number, 2);
  EXPECT_EQ(log_.size(), 1U);
  gate_->reload_if_changed();
  EXPECT_EQ(log_.size(), 1U);  // nothing changed since
}

TEST_F(KeyGateTest, ABrokenFileKeepsTheOldOneAndSaysSoOnce) {
  open();
  const std::string good = test::read_text(path_);
  for (const std::string& broken :
       {std::string("version = 1\nsecret = \"key-of-a"), std::string(), good.substr(0, 90)}) {
    log_.clear();
    test::write_text(path_, broken);
    gate_->reload_if_changed();
    gate_->reload_if_changed();
    ASSERT_EQ(log_.size(), 1U);
    EXPECT_TRUE(log_.front().starts_with("the keys of before stay: ")) << log_.front();
    EXPECT_EQ(log_.front().find('\n'), std::string::npos);
    EXPECT_EQ(log_.front().find("key-of-a"), std::string::npos);
    EXPECT_EQ(http("Bearer key-of-a"), 200);
  }
  log_.clear();
  std::filesystem::remove(path_);
  gate_->reload_if_changed();
  gate_->reload_if_changed();
  EXPECT_EQ(log_.size(), 1U);
  EXPECT_EQ(http("Bearer key-of-a"), 200);
  test::write_text(path_, good);
  ::chmod(path_.c_str(), 0644);
  gate_->reload_if_changed();
  EXPECT_NE(log_.back().find("chmod 600"), std::string::npos) << log_.back();
  ::chmod(path_.c_str(), 0600);  // the permissions alone change
  gate_->reload_if_changed();
  EXPECT_EQ(log_.back(), "read the keys file again: 2 valid keys of 2 tenants");
}

TEST_F(KeyGateTest, OnlyAnOperatorsKeySeesTheWholeServer) {
  file_.keys[1].is_operator = true;
  save();
  open();
  EXPECT_EQ(http("Bearer key-of-a"), 200);
  EXPECT_FALSE(caller_.sees_all);
  EXPECT_EQ(http("Bearer key-of-b"), 200);
  EXPECT_TRUE(caller_.sees_all);
  EXPECT_EQ(caller_.tenant, "b");
}

// A system that refuses for a moment must not leave a revoked key valid.
TEST_F(KeyGateTest, AFileThatCouldNotBeReadIsReadAgain) {
  open();
  file_.keys[0].revoked = now_;
  save();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  gate_->reload_if_changed();
  gate_->reload_if_changed();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(log_.size(), 1U) << "it is said once";
  EXPECT_TRUE(log_.front().starts_with("the keys of before stay: ")) << log_.front();
  EXPECT_EQ(http("Bearer key-of-a"), 200);
  gate_->reload_if_changed();
  EXPECT_EQ(http("Bearer key-of-a"), 401);
  EXPECT_EQ(log_.size(), 2U);
  gate_->reload_if_changed();
  EXPECT_EQ(log_.size(), 2U);
}

TEST_F(KeyGateTest, LimitsRefuseWith429) {
  file_.tenants[0].requests_per_minute = 2;
  file_.tenants[1].concurrent = 1;
  save();
  open();
  EXPECT_EQ(http("Bearer key-of-a"), 200);
  EXPECT_EQ(http("Bearer key-of-a"), 200);
  const std::optional<Refusal> refusal = check("Bearer key-of-a");
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->http, 429);
  EXPECT_EQ(refusal->code, "rate_limit_exceeded");
  EXPECT_EQ(refusal->message, "tenant 'a' may send 2 requests a minute; try again in 30 s");
  EXPECT_EQ(refusal->fields, (HttpFields{{"Retry-After", "30"}}));
  EXPECT_EQ(http("Bearer key-of-a", "GET"), 200);  // reading costs nothing
  steady_ += seconds(30);
  EXPECT_EQ(http("Bearer key-of-a"), 200);
  EXPECT_EQ(limited_, std::vector<std::string>{"a"});

  ASSERT_FALSE(check("Bearer key-of-b").has_value());
  Caller running = caller_;
  EXPECT_EQ(check("Bearer key-of-b")->message, "tenant 'b' may have 1 request at a time; try again when one has ended");
  EXPECT_EQ(gate_->tenants()[1].running, 1);
  running.hold.reset();
  EXPECT_EQ(http("Bearer key-of-b"), 200);
  EXPECT_EQ(refusals_.reasons, (std::vector<std::string>{"rate_limit", "rate_limit"}));
}

TEST_F(KeyGateTest, TokensAreChargedToTheirTenant) {
  file_.tenants[0].tokens_per_minute = file_.tenants[1].tokens_per_minute = 60;
  save();
  open();
  RequestRecord record;
  record.tenant = "a";
  record.prompt_tokens = 50;
  record.generated_tokens = 20;
  gate_->on_finished(record);
  record.tenant = "nobody";
  gate_->on_finished(record);
  const std::optional<Refusal> refusal = check("Bearer key-of-a");
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->message, "tenant 'a' may use 60 tokens a minute, and has used more; try again in 11 s");
  EXPECT_EQ(http("Bearer key-of-b"), 200);
}

TEST_F(KeyGateTest, QuotasGoToTheEngineWhatShrinksFirst) {
  file_.tenants[0].floor = 300;
  file_.tenants[1].ceiling = 500;
  save();
  open();
  ASSERT_EQ(gate_->quotas().size(), 2U);
  ASSERT_TRUE(gate_->limit_floors(300).ok());
  file_.tenants[0].floor = 0;
  file_.tenants[1].floor = 300;
  Tenant& fresh = file_.tenants.emplace_back();
  fresh.name = "c";
  fresh.ceiling = 7;
  // One more tenant in front: numbers must not move.
  std::swap(file_.tenants[0], file_.tenants[2]);
  save();
  gate_->reload_if_changed();
  ASSERT_EQ(quotas_.size(), 3U);
  EXPECT_EQ(quotas_[0].tenant, "a");
  EXPECT_EQ(quotas_[0].tenant_number, 1);
  EXPECT_EQ(quotas_[0].quota.floor, 0U);
  EXPECT_EQ(quotas_[1].tenant, "b");
  EXPECT_EQ(quotas_[1].tenant_number, 2);
  EXPECT_EQ(quotas_[1].quota.floor, 300U);
  EXPECT_EQ(quotas_[2].tenant, "c");
  EXPECT_EQ(quotas_[2].tenant_number, 3);
  EXPECT_EQ(quotas_[2].quota.ceiling, 7U);
}

TEST_F(KeyGateTest, ARemovedTenantLosesItsQuota) {
  file_.tenants[0].floor = 300;
  save();
  open();
  file_.keys.erase(file_.keys.begin());
  file_.tenants.erase(file_.tenants.begin());
  save();
  gate_->reload_if_changed();
  ASSERT_EQ(quotas_.size(), 1U);
  EXPECT_EQ(quotas_[0].tenant_number, 1);
  EXPECT_EQ(quotas_[0].quota.floor, 0U);
  EXPECT_EQ(gate_->tenants().size(), 1U);
  EXPECT_EQ(http("Bearer key-of-b"), 200);
  EXPECT_EQ(caller_.tenant_number, 2);
}

TEST_F(KeyGateTest, FloorsMustFitIntoTheMemory) {
  file_.tenants[0].floor = 300;
  file_.tenants[1].floor = 1;
  save();
  open();
  const Status status = gate_->limit_floors(300);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("floors are more than the KV memory of 300 bytes"), std::string::npos)
      << status.message();
  EXPECT_TRUE(gate_->limit_floors(301).ok());
  file_.tenants[1].floor = ~std::uint64_t{0};
  file_.tenants[1].ceiling = ~std::uint64_t{0};
  test::write_text(path_, tenants::key_file_text(file_));
  gate_->reload_if_changed();
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_TRUE(quotas_.empty());
  EXPECT_EQ(gate_->tenants()[1].quota.floor, 1U);
}

}  // namespace
}  // namespace kvasir::server
