#include "client/memctl/render.h"

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <cctype>
#include <ctime>
#include <nlohmann/json.hpp>

#include "client/memctl/format.h"

namespace gpumem::memctl {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::RepeatedField;

std::string Rfc3339(const google::protobuf::Timestamp& at, bool with_fraction) {
  const std::time_t seconds = at.seconds();
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return std::to_string(at.seconds()) + "s";
  char text[64];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::string out(text, length);
  if (with_fraction) {
    std::snprintf(text, sizeof text, ".%03d", static_cast<int>(at.nanos() / 1'000'000) % 1000);
    out += text;
  }
  return out + "Z";
}

Json MessageToJson(const Message& message);

// One value of a field; index < 0 for a field that is not repeated.
Json ValueToJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* r = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r->GetInt32(message, field) : r->GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(message, field) : r->GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(message, field) : r->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r->GetUInt64(message, field) : r->GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r->GetDouble(message, field) : r->GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r->GetFloat(message, field) : r->GetRepeatedFloat(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(message, field) : r->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Word(field->enum_type(),
                  one ? r->GetEnumValue(message, field) : r->GetRepeatedEnumValue(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r->GetString(message, field) : r->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(one ? r->GetMessage(message, field) : r->GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

Json MessageToJson(const Message& message) {
  const Descriptor* type = message.GetDescriptor();
  if (type == google::protobuf::Timestamp::descriptor()) {
    return Rfc3339(static_cast<const google::protobuf::Timestamp&>(message), /*with_fraction=*/true);
  }
  if (type == google::protobuf::Duration::descriptor()) {
    const auto& duration = static_cast<const google::protobuf::Duration&>(message);
    return static_cast<double>(duration.seconds()) + duration.nanos() / 1e9;
  }
  const Reflection* r = message.GetReflection();
  Json out = Json::object();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->name() == "next_page_token") continue;
    if (field->is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < r->FieldSize(message, field); ++k) list.push_back(ValueToJson(message, field, k));
      out[field->name()] = std::move(list);
    } else if (field->real_containing_oneof() != nullptr) {
      if (r->HasField(message, field)) out[field->name()] = ValueToJson(message, field, -1);
    } else if (field->has_presence() && !r->HasField(message, field)) {
      out[field->name()] = nullptr;
    } else {
      out[field->name()] = ValueToJson(message, field, -1);
    }
  }
  return out;
}

std::string Of(v1::Role v) { return Word(v1::Role_descriptor(), v); }
std::string Of(v1::DriverKind v) { return Word(v1::DriverKind_descriptor(), v); }
std::string Of(v1::DeviceState v) { return Word(v1::DeviceState_descriptor(), v); }
std::string Of(v1::SessionState v) { return Word(v1::SessionState_descriptor(), v); }
std::string Of(v1::LeaseKind v) { return Word(v1::LeaseKind_descriptor(), v); }
std::string Of(v1::ChunkState v) { return Word(v1::ChunkState_descriptor(), v); }
std::string Of(v1::SegmentState v) { return Word(v1::SegmentState_descriptor(), v); }
std::string Of(v1::QuarantineReason v) { return Word(v1::QuarantineReason_descriptor(), v); }

std::string Words(const RepeatedField<int>& evidence) {
  std::string out;
  for (const int number : evidence) {
    if (!out.empty()) out += ", ";
    out += Word(v1::Evidence_descriptor(), number);
  }
  return out;
}

std::string AgeOf(bool set, const google::protobuf::Timestamp& at, std::int64_t now_s) {
  return set ? Age(now_s - at.seconds()) : "";
}

// An id, or "" for 0: none.
std::string IdOf(std::uint64_t id) { return id == 0 ? "" : std::to_string(id); }
std::string PidOf(std::int64_t pid) { return pid == 0 ? "" : std::to_string(pid); }

// For a column that is left out when no row has any.
std::string BytesOrNone(std::uint64_t bytes) { return bytes == 0 ? "" : HumanBytes(bytes); }

std::string Counted(std::uint64_t n, const std::string& one, const std::string& many) {
  return std::to_string(n) + " " + (n == 1 ? one : many);
}

template <typename Devices>
std::string DeviceTable(const Devices& devices) {
  Table table({{"DEVICE"},
               {"STATE"},
               {"CAPACITY", true},
               {"CHARGED", true},
               {"AVAILABLE", true},
               {"PHYSICAL", true},
               {"MAPPED-RO", true},
               {"MAPPED-RW", true},
               {"UNATTRIBUTED", true},
               {"QUARANTINED", true, true},
               {"DRAINING", true, true},
               {"NAME"},
               {"DETAIL", false, true}});
  for (const v1::Device& d : devices) {
    table.Row({d.uuid(), Of(d.state()), HumanBytes(d.capacity_bytes()), HumanBytes(d.charged_bytes()),
               HumanBytes(d.available_bytes()), HumanBytes(d.physical_bytes()), HumanBytes(d.mapped_read_only_bytes()),
               HumanBytes(d.mapped_read_write_bytes()), HumanBytes(d.unattributed_bytes()),
               BytesOrNone(d.quarantined_bytes()), BytesOrNone(d.draining_bytes()), d.name(), d.detail()});
  }
  return table.ToString();
}

std::string TenantTable(const v1::GetStatusResponse& status) {
  Table table({{"TENANT"}, {"LIMIT/DEVICE", true}, {"DEVICE"}, {"CHARGED", true}});
  for (const v1::Tenant& tenant : status.tenants()) {
    const std::string limit = tenant.has_limit_bytes() ? HumanBytes(tenant.limit_bytes()) : "none";
    if (tenant.uses().empty()) table.Row({tenant.name(), limit, "", HumanBytes(0)});
    for (const v1::TenantUse& use : tenant.uses()) {
      table.Row({tenant.name(), limit, use.device_uuid(), HumanBytes(use.charged_bytes())});
    }
  }
  return table.ToString();
}

std::string ChunksOf(const v1::Lease& lease) {
  std::string out;
  for (const v1::LeaseChunks& group : lease.chunks()) {
    if (!out.empty()) out += ", ";
    out += std::to_string(group.count()) + " " + Of(group.state());
  }
  return out;
}

std::string DevicesOf(const v1::Lease& lease) {
  std::string out, last;
  for (const v1::LeaseChunks& group : lease.chunks()) {
    if (group.device_uuid() == last) continue;
    if (!out.empty()) out += ", ";
    out += last = group.device_uuid();
  }
  return out;
}

}  // namespace

std::string Word(const google::protobuf::EnumDescriptor* type, int number) {
  if (number == 0) return "";
  const google::protobuf::EnumValueDescriptor* value = type->FindValueByNumber(number);
  if (value == nullptr) return "unknown-" + std::to_string(number);
  // The prefix is that of the zero value, which ends in UNSPECIFIED by rule.
  const std::string& zero = type->value(0)->name();
  const std::size_t prefix = zero.size() - std::string("UNSPECIFIED").size();
  std::string word = value->name().substr(prefix);
  for (char& c : word) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

std::string ToJson(const Message& message, int indent) {
  return MessageToJson(message).dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string ToTable(const v1::GetStatusResponse& s, std::int64_t now_s) {
  const auto line = [](const char* what, const std::string& value) {
    std::string label = what;
    label.resize(12, ' ');
    return label + Printable(value) + "\n";
  };
  std::string out =
      line("gpumemd", s.daemon_version() + ", driver " + Of(s.driver()) + ", up " +
                          AgeOf(s.has_started_at(), s.started_at(), now_s) + (s.draining() ? ", draining" : ""));
  out += line("instance", s.instance());
  out += line("control", s.control_socket());
  out += line("handles", s.handle_socket());
  out += line("keeper", std::string(s.keeper_connected() ? "connected" : "not connected") + ", " +
                            Counted(s.kept_handles(), "handle", "handles"));
  out +=
      line("sessions", std::to_string(s.sessions_live()) + " live, " + std::to_string(s.sessions_fenced()) + " fenced");
  out += line("leases", std::to_string(s.leases()));
  out += line("segments", std::to_string(s.segments()));
  out += line("quarantine",
              Counted(s.quarantine_records(), "record", "records") + ", " + HumanBytes(s.quarantined_bytes()));
  return out + "\n" + DeviceTable(s.devices()) + "\n" + TenantTable(s);
}

std::string ToTable(const v1::ListDevicesResponse& devices, std::int64_t) { return DeviceTable(devices.devices()); }

std::string ToTable(const v1::ListSessionsResponse& sessions, std::int64_t now_s) {
  Table table({{"SESSION", true},
               {"STATE"},
               {"PID", true},
               {"UID", true},
               {"COMM"},
               {"TENANT"},
               {"HOLDERS", true},
               {"LEASES", true},
               {"SEGMENTS", true},
               {"CHARGED", true},
               {"MAPPED-RO", true},
               {"MAPPED-RW", true},
               {"AGE", true},
               {"WAITS-FOR", false, true},
               {"DETAIL", false, true}});
  for (const v1::Session& s : sessions.sessions()) {
    table.Row({std::to_string(s.session_id()), Of(s.state()), PidOf(s.pid()), std::to_string(s.uid()), s.comm(),
               s.tenant(), std::to_string(s.holders()), std::to_string(s.leases()), std::to_string(s.attachments()),
               HumanBytes(s.charged_bytes()), HumanBytes(s.mapped_read_only_bytes()),
               HumanBytes(s.mapped_read_write_bytes()), AgeOf(s.has_since(), s.since(), now_s), Words(s.waiting_for()),
               s.fence_detail()});
  }
  return table.ToString();
}

std::string ToTable(const v1::ListHoldersResponse& holders, std::int64_t) {
  Table table({{"HOLDER", true},
               {"NAME"},
               {"ROLE"},
               {"SESSION", true},
               {"PID", true},
               {"TENANT"},
               {"LEASES", true},
               {"SEGMENTS", true},
               {"CHARGED", true},
               {"MAPPED-RO", true},
               {"MAPPED-RW", true}});
  for (const v1::Holder& h : holders.holders()) {
    table.Row({std::to_string(h.holder_id()), h.name(), Of(h.role()), IdOf(h.session_id()), PidOf(h.pid()), h.tenant(),
               std::to_string(h.leases()), std::to_string(h.attachments()), HumanBytes(h.charged_bytes()),
               HumanBytes(h.mapped_read_only_bytes()), HumanBytes(h.mapped_read_write_bytes())});
  }
  return table.ToString();
}

std::string ToTable(const v1::ListLeasesResponse& leases, std::int64_t now_s) {
  Table table({{"LEASE", true},
               {"KIND"},
               {"HOLDER", false, true},
               {"SESSION", true, true},
               {"TENANT"},
               {"SEGMENT", false, true},
               {"ASKED", true},
               {"CHARGED", true},
               {"CHUNKS"},
               {"DEVICES"},
               {"AGE", true}});
  for (const v1::Lease& l : leases.leases()) {
    table.Row({std::to_string(l.lease_id()), Of(l.kind()), l.holder(), IdOf(l.session_id()), l.tenant(), l.segment(),
               HumanBytes(l.asked_bytes()), HumanBytes(l.charged_bytes()), ChunksOf(l), DevicesOf(l),
               AgeOf(l.has_since(), l.since(), now_s)});
  }
  return table.ToString();
}

std::string ToTable(const v1::ListAllSegmentsResponse& segments, std::int64_t now_s) {
  Table table({{"SEGMENT"},
               {"STATE"},
               {"SIZE", true},
               {"CHUNKS", true},
               {"TENSORS", true},
               {"READERS", true},
               {"TENANT"},
               {"LEASE", true},
               {"SEALED", true}});
  for (const v1::Segment& s : segments.segments()) {
    table.Row({s.name(), Of(s.state()), HumanBytes(s.bytes()), std::to_string(s.chunks()), std::to_string(s.tensors()),
               std::to_string(s.readers()), s.tenant(), IdOf(s.lease_id()),
               AgeOf(s.has_sealed_at(), s.sealed_at(), now_s)});
  }
  return table.ToString();
}

std::string ToTable(const v1::ListQuarantineResponse& quarantine, std::int64_t now_s) {
  Table table({{"RECORD", true},
               {"REASON"},
               {"SIZE", true},
               {"HOLDER", false, true},
               {"ROLE", false, true},
               {"PID", true, true},
               {"SESSION", true, true},
               {"SEGMENT", false, true},
               {"DEVICE"},
               {"AGE", true},
               {"EVIDENCE"},
               {"WAITS-FOR"}});
  for (const v1::QuarantineRecord& q : quarantine.records()) {
    table.Row({std::to_string(q.record_id()), Of(q.reason()), HumanBytes(q.bytes()), q.holder(), Of(q.role()),
               PidOf(q.pid()), IdOf(q.session_id()), q.segment(), q.device_uuid(),
               AgeOf(q.has_since(), q.since(), now_s), Words(q.evidence()), Words(q.waiting_for())});
  }
  return table.ToString();
}

std::string EventLine(const v1::Event& event) {
  std::string out = event.has_at() ? Rfc3339(event.at(), /*with_fraction=*/true) : "-";
  out += "  #" + std::to_string(event.sequence()) + "  ";
  const auto detail = [](const std::string& text) { return text.empty() ? "" : ": " + Printable(text); };
  switch (event.kind_case()) {
    case v1::Event::kSessionFenced: {
      const v1::SessionFenced& e = event.session_fenced();
      return out + "session " + std::to_string(e.session_id()) + " fenced, " + Of(e.reason()) + ", " +
             HumanBytes(e.quarantined_bytes()) + " quarantined" + detail(e.detail());
    }
    case v1::Event::kSessionEnded:
      return out + "session " + std::to_string(event.session_ended().session_id()) + " ended, " +
             HumanBytes(event.session_ended().settled_bytes()) + " settled";
    case v1::Event::kDeviceChanged: {
      const v1::DeviceChanged& e = event.device_changed();
      return out + "device " + Printable(e.device_uuid()) + " " + Of(e.state()) + ", generation " +
             std::to_string(e.generation()) + detail(e.detail());
    }
    case v1::Event::kSegmentChanged: {
      const v1::SegmentChanged& e = event.segment_changed();
      return out + "segment " + Printable(e.name()) + " " + (e.removed() ? "removed" : Of(e.state()));
    }
    case v1::Event::kDaemonStopping:
      return out + "the daemon is stopping, " + Age(event.daemon_stopping().grace().seconds()) + " of grace";
    case v1::Event::KIND_NOT_SET:
      break;
  }
  return out + "an event that this memctl does not know";
}

std::string ErrorLine(const std::string& message, const std::string& reason, const std::string& retry) {
  std::string out = "memctl: " + Printable(message);
  if (!reason.empty()) out += " [" + Printable(reason) + "]";
  if (retry == "later") out += "; the same command may succeed later";
  if (retry == "new") out += "; put right what the message names, then ask again";
  if (retry == "no") out += "; repeating the command will not help";
  return out + "\n";
}

}  // namespace gpumem::memctl
