// memctl's tables and JSON, as a person and a script get them.
#include "client/memctl/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/memctl/format.h"

namespace gpumem::memctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kNow = 1'800'000'000;  // 2027-01-15T08:00:00Z
constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr const char* kGpu = "GPU-00000000-0000-0000-0000-000000000001";

TEST(FormatTest, HumanBytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(80 * kGiB), "80 GiB");
  EXPECT_EQ(HumanBytes(80 * kGiB - 1), "79.9 GiB");
  EXPECT_EQ(HumanBytes(kMiB - 1), "1023.9 KiB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "15.9 EiB");
}

TEST(FormatTest, Age) {
  EXPECT_EQ(Age(-5), "0s");
  EXPECT_EQ(Age(59), "59s");
  EXPECT_EQ(Age(60), "1m00s");
  EXPECT_EQ(Age(192), "3m12s");
  EXPECT_EQ(Age(3600 + 5 * 60 + 59), "1h05m");
  EXPECT_EQ(Age(4 * 86400 + 7 * 3600), "4d07h");
}

TEST(FormatTest, NothingAPeerChoseActsOnTheTerminal) {
  EXPECT_EQ(Printable("llama-3/weights@2 é 模型"), "llama-3/weights@2 é 模型");
  EXPECT_EQ(Printable("a\x1b[2J\nb\x7f"), "a\\x1b[2J\\x0ab\\x7f");
  EXPECT_EQ(Printable("\\x1b"), "\\\\x1b");
  EXPECT_EQ(Printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\u{9b}");              // CSI as one character
  EXPECT_EQ(Printable("\xe2\x80\xae"), "\\u{202e}");        // right-to-left override
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");           // overlong '/'
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
}

TEST(FormatTest, ColumnsAlignByCharacters) {
  Table table({{"NAME"}, {"SIZE", true}});
  table.Row({"é", "1 B"});
  table.Row({"", "1000 B"});
  EXPECT_EQ(table.ToString(),
            "NAME    SIZE\n"
            "é        1 B\n"
            "-     1000 B\n");
  EXPECT_EQ(Table({{"NAME"}, {"X"}}).ToString(), "NAME  X\n(none)\n");
}

TEST(FormatTest, AColumnThatNobodyNeedsIsLeftOut) {
  Table table({{"NAME"}, {"WHY", false, true}, {"SIZE", true, true}});
  table.Row({"a", "", "1 B"});
  EXPECT_EQ(table.ToString(), "NAME  SIZE\na      1 B\n");
  table.Row({"b", "cold", ""});
  EXPECT_EQ(table.ToString(), "NAME  WHY   SIZE\na     -      1 B\nb     cold     -\n");
}

TEST(RenderTest, WordsOfEnums) {
  EXPECT_EQ(Word(v1::Role_descriptor(), v1::ROLE_KV_CACHE), "kv-cache");
  EXPECT_EQ(Word(v1::QuarantineReason_descriptor(), v1::QUARANTINE_REASON_WRITER_FAULTED), "writer-faulted");
  EXPECT_EQ(Word(v1::Evidence_descriptor(), v1::EVIDENCE_PIDFD_READABLE), "pidfd-readable");
  EXPECT_EQ(Word(v1::DriverKind_descriptor(), v1::DRIVER_KIND_SIM), "sim");
  EXPECT_EQ(Word(v1::Role_descriptor(), 0), "");
  EXPECT_EQ(Word(v1::Role_descriptor(), 99), "unknown-99");
}

v1::QuarantineRecord Faulted() {
  v1::QuarantineRecord q;
  q.set_record_id(9);
  q.set_generation(12);
  q.set_reason(v1::QUARANTINE_REASON_WRITER_FAULTED);
  q.set_lease_id(5);
  q.set_device_uuid(kGpu);
  q.set_bytes(64 * kMiB);
  q.set_chunks(4);
  q.set_session_id(3);
  q.set_pid(4711);
  q.set_holder("A/kv");
  q.set_role(v1::ROLE_KV_CACHE);
  q.set_tenant("default");
  q.set_detail("CUDA_ERROR_ILLEGAL_ADDRESS (700)");
  q.mutable_since()->set_seconds(kNow - 192);
  q.add_evidence(v1::EVIDENCE_FAULT_REPORTED);
  q.add_evidence(v1::EVIDENCE_SOCKET_CLOSED);
  q.add_waiting_for(v1::EVIDENCE_PIDFD_READABLE);
  q.add_waiting_for(v1::EVIDENCE_WITNESS_CLOSED);
  return q;
}

TEST(RenderTest, Quarantine) {
  v1::ListQuarantineResponse list;
  *list.add_records() = Faulted();
  EXPECT_EQ(
      ToTable(list, kNow),
      "RECORD  REASON            SIZE  HOLDER  ROLE       PID  SESSION  DEVICE                                      "
      "AGE  EVIDENCE                       WAITS-FOR\n"
      "     9  writer-faulted  64 MiB  A/kv    kv-cache  4711        3  GPU-00000000-0000-0000-0000-000000000001  "
      "3m12s  fault-reported, socket-closed  pidfd-readable, witness-closed\n");
}

TEST(RenderTest, QuarantineAsJson) {
  v1::ListQuarantineResponse list;
  list.set_instance("00ff");
  list.set_next_page_token(77);
  *list.add_records() = Faulted();
  const std::string want =
      "{\n"
      "  \"instance\": \"00ff\",\n"
      "  \"records\": [\n"
      "    {\n"
      "      \"record_id\": 9,\n"
      "      \"generation\": 12,\n"
      "      \"reason\": \"writer-faulted\",\n"
      "      \"lease_id\": 5,\n"
      "      \"device_uuid\": \"GPU-00000000-0000-0000-0000-000000000001\",\n"
      "      \"bytes\": 67108864,\n"
      "      \"chunks\": 4,\n"
      "      \"session_id\": 3,\n"
      "      \"pid\": 4711,\n"
      "      \"holder\": \"A/kv\",\n"
      "      \"role\": \"kv-cache\",\n"
      "      \"tenant\": \"default\",\n"
      "      \"segment\": \"\",\n"
      "      \"detail\": \"CUDA_ERROR_ILLEGAL_ADDRESS (700)\",\n"
      "      \"since\": \"2027-01-15T07:56:48.000Z\",\n"
      "      \"evidence\": [\n"
      "        \"fault-reported\",\n"
      "        \"socket-closed\"\n"
      "      ],\n"
      "      \"waiting_for\": [\n"
      "        \"pidfd-readable\",\n"
      "        \"witness-closed\"\n"
      "      ]\n"
      "    }\n"
      "  ]\n"
      "}";
  EXPECT_EQ(ToJson(list, 2), want);
}

TEST(RenderTest, JsonKeepsEveryBitAndSurvivesBadUtf8) {
  v1::ListDevicesResponse list;
  v1::Device* device = list.add_devices();
  device->set_capacity_bytes(UINT64_MAX);
  device->set_detail("\xff\"\n");
  const std::string json = ToJson(list, -1);
  EXPECT_THAT(json, HasSubstr("\"capacity_bytes\":18446744073709551615"));
  EXPECT_THAT(json, HasSubstr("\"physical_bytes\":0"));
  EXPECT_THAT(json, HasSubstr("\xef\xbf\xbd\\\"\\n"));
  EXPECT_FALSE(nlohmann::json::parse(json, nullptr, false).is_discarded());
}

TEST(RenderTest, Devices) {
  v1::ListDevicesResponse list;
  v1::Device* d = list.add_devices();
  d->set_uuid(kGpu);
  d->set_name("Simulated 80 GiB");
  d->set_state(v1::DEVICE_STATE_HEALTHY);
  d->set_capacity_bytes(80 * kGiB);
  d->set_charged_bytes(kGiB + kGiB / 2);
  d->set_physical_bytes(kGiB);
  d->set_mapped_read_only_bytes(512 * kMiB);
  d->set_mapped_read_write_bytes(256 * kMiB);
  d->set_quarantined_bytes(2 * kMiB);
  d->set_available_bytes(78 * kGiB);
  EXPECT_EQ(ToTable(list, kNow),
            "DEVICE                                    STATE    CAPACITY  CHARGED  AVAILABLE  PHYSICAL  MAPPED-RO  "
            "MAPPED-RW  UNATTRIBUTED  QUARANTINED  NAME\n"
            "GPU-00000000-0000-0000-0000-000000000001  healthy    80 GiB  1.5 GiB     78 GiB     1 GiB    512 MiB  "
            "  256 MiB           0 B        2 MiB  Simulated 80 GiB\n");
}

TEST(RenderTest, Sessions) {
  v1::ListSessionsResponse list;
  v1::Session* s = list.add_sessions();
  s->set_session_id(3);
  s->set_state(v1::SESSION_STATE_FENCED);
  s->set_uid(1000);
  s->set_comm("evil\x1b[31m");
  s->set_tenant("default");
  s->set_charged_bytes(kGiB);
  s->mutable_since()->set_seconds(kNow - 61);
  s->add_waiting_for(v1::EVIDENCE_PIDFD_READABLE);
  s->set_fence_detail("the worker reported CUDA_ERROR_ILLEGAL_ADDRESS");
  const std::string table = ToTable(list, kNow);
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_EQ(
      table,
      "SESSION  STATE   PID   UID  COMM          TENANT   HOLDERS  LEASES  SEGMENTS  CHARGED  MAPPED-RO  MAPPED-RW  "
      "  AGE  WAITS-FOR       DETAIL\n"
      "      3  fenced    -  1000  evil\\x1b[31m  default        0       0         0    1 GiB        0 B        0 B  "
      "1m01s  pidfd-readable  the worker reported CUDA_ERROR_ILLEGAL_ADDRESS\n");
}

TEST(RenderTest, HoldersLeasesAndSegments) {
  v1::ListHoldersResponse holders;
  v1::Holder* h = holders.add_holders();
  h->set_holder_id(4);
  h->set_session_id(3);
  h->set_name("A/kv");
  h->set_role(v1::ROLE_KV_CACHE);
  h->set_tenant("default");
  h->set_leases(1);
  h->set_charged_bytes(64 * kMiB);
  h->set_pid(4711);
  EXPECT_EQ(ToTable(holders, kNow),
            "HOLDER  NAME  ROLE      SESSION   PID  TENANT   LEASES  SEGMENTS  CHARGED  MAPPED-RO  MAPPED-RW\n"
            "     4  A/kv  kv-cache        3  4711  default       1         0   64 MiB        0 B        0 B\n");

  v1::ListLeasesResponse leases;
  v1::Lease* l = leases.add_leases();
  l->set_lease_id(5);
  l->set_kind(v1::LEASE_KIND_PRIVATE);
  l->set_session_id(3);
  l->set_holder("A/kv");
  l->set_tenant("default");
  l->set_asked_bytes(63 * kMiB);
  l->set_charged_bytes(64 * kMiB);
  l->mutable_since()->set_seconds(kNow);
  for (const auto state : {v1::CHUNK_STATE_LIVE, v1::CHUNK_STATE_QUARANTINED}) {
    v1::LeaseChunks* group = l->add_chunks();
    group->set_device_uuid(kGpu);
    group->set_state(state);
    group->set_count(state);
  }
  EXPECT_EQ(
      ToTable(leases, kNow),
      "LEASE  KIND     HOLDER  SESSION  TENANT    ASKED  CHARGED  CHUNKS                 DEVICES                     "
      "              AGE\n"
      "    5  private  A/kv          3  default  63 MiB   64 MiB  3 live, 5 quarantined  "
      "GPU-00000000-0000-0000-0000-000000000001   0s\n");

  v1::ListAllSegmentsResponse segments;
  v1::Segment* s = segments.add_segments();
  s->set_name("demo/model@1");
  s->set_state(v1::SEGMENT_STATE_SEALED);
  s->set_bytes(256 * kMiB);
  s->set_chunks(4);
  s->set_tensors(96);
  s->set_readers(2);
  s->set_tenant("default");
  s->set_lease_id(1);
  s->mutable_sealed_at()->set_seconds(kNow - 7200);
  segments.add_segments()->set_name("new");
  EXPECT_EQ(ToTable(segments, kNow),
            "SEGMENT       STATE      SIZE  CHUNKS  TENSORS  READERS  TENANT   LEASE  SEALED\n"
            "demo/model@1  sealed  256 MiB       4       96        2  default      1   2h00m\n"
            "new           -           0 B       0        0        0  -            -       -\n");
}

TEST(RenderTest, Status) {
  v1::GetStatusResponse status;
  status.set_instance("00ff");
  status.set_daemon_version("0.1.0");
  status.set_driver(v1::DRIVER_KIND_SIM);
  status.mutable_started_at()->set_seconds(kNow - 192);
  status.set_keeper_connected(true);
  status.set_kept_handles(1);
  status.set_sessions_live(2);
  status.set_sessions_fenced(1);
  status.set_leases(3);
  status.set_segments(1);
  status.set_quarantine_records(1);
  status.set_quarantined_bytes(64 * kMiB);
  status.set_control_socket("/run/gpumemd/control.sock");
  status.set_handle_socket("/run/gpumemd/handles.sock");
  v1::Tenant* tenant = status.add_tenants();
  tenant->set_name("default");
  v1::TenantUse* use = tenant->add_uses();
  use->set_device_uuid(kGpu);
  use->set_charged_bytes(kGiB);
  EXPECT_EQ(ToTable(status, kNow),
            "gpumemd     0.1.0, driver sim, up 3m12s\n"
            "instance    00ff\n"
            "control     /run/gpumemd/control.sock\n"
            "handles     /run/gpumemd/handles.sock\n"
            "keeper      connected, 1 handle\n"
            "sessions    2 live, 1 fenced\n"
            "leases      3\n"
            "segments    1\n"
            "quarantine  1 record, 64 MiB\n"
            "\n"
            "DEVICE  STATE  CAPACITY  CHARGED  AVAILABLE  PHYSICAL  MAPPED-RO  MAPPED-RW  UNATTRIBUTED  NAME\n"
            "(none)\n"
            "\n"
            "TENANT   LIMIT/DEVICE  DEVICE                                    CHARGED\n"
            "default          none  GPU-00000000-0000-0000-0000-000000000001    1 GiB\n");
  EXPECT_THAT(ToJson(status, -1), HasSubstr("\"limit_bytes\":null"));
  tenant->set_limit_bytes(0);
  EXPECT_THAT(ToJson(status, -1), HasSubstr("\"limit_bytes\":0"));
}

TEST(RenderTest, Events) {
  v1::Event event;
  event.set_sequence(7);
  event.mutable_at()->set_seconds(kNow);
  event.mutable_at()->set_nanos(250'000'000);
  v1::SessionFenced* fenced = event.mutable_session_fenced();
  fenced->set_session_id(3);
  fenced->set_reason(v1::QUARANTINE_REASON_WRITER_DIED);
  fenced->set_quarantined_bytes(kMiB);
  fenced->set_detail("gone\n");
  EXPECT_EQ(EventLine(event),
            "2027-01-15T08:00:00.250Z  #7  session 3 fenced, writer-died, 1 MiB quarantined: gone\\x0a");
  EXPECT_EQ(ToJson(event, -1), R"({"sequence":7,"at":"2027-01-15T08:00:00.250Z","session_fenced":{"session_id":3,)"
                               R"("reason":"writer-died","quarantined_bytes":1048576,"detail":"gone\n"}})");
  event.mutable_segment_changed()->set_removed(true);
  event.mutable_segment_changed()->set_name("m@1");
  EXPECT_THAT(EventLine(event), HasSubstr("segment m@1 removed"));
  event.mutable_session_ended()->set_session_id(3);
  event.mutable_session_ended()->set_settled_bytes(kMiB);
  EXPECT_THAT(EventLine(event), HasSubstr("session 3 ended, 1 MiB settled"));
  event.mutable_device_changed()->set_state(v1::DEVICE_STATE_STARTING);
  event.mutable_device_changed()->set_device_uuid(kGpu);
  event.mutable_device_changed()->set_generation(4);
  EXPECT_THAT(EventLine(event), HasSubstr(std::string(kGpu) + " starting, generation 4"));
  event.mutable_daemon_stopping()->mutable_grace()->set_seconds(2);
  event.mutable_daemon_stopping()->mutable_grace()->set_nanos(500'000'000);
  EXPECT_THAT(EventLine(event), HasSubstr("stopping, 2s of grace"));
  EXPECT_THAT(ToJson(event, -1), HasSubstr(R"("grace":2.5)"));
  event.clear_kind();
  EXPECT_THAT(EventLine(event), HasSubstr("does not know"));
}

TEST(RenderTest, Errors) {
  EXPECT_EQ(ErrorLine("segment m@1 has 2 readers", "SEGMENT_IN_USE", "later"),
            "memctl: segment m@1 has 2 readers [SEGMENT_IN_USE]; the same command may succeed later\n");
  EXPECT_THAT(ErrorLine("x", "QUOTA", "new"), HasSubstr("[QUOTA]; put right what the message names"));
  EXPECT_THAT(ErrorLine("x", "QUOTA", "no"), HasSubstr("[QUOTA]; repeating the command will not help"));
  EXPECT_EQ(ErrorLine("a\nb", "", ""), "memctl: a\\x0ab\n");
}

}  // namespace
}  // namespace gpumem::memctl
