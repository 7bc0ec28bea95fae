// SPDX-License-Identifier: Apache-2.0
#include "cluster/hccn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/hccn_stand_in.h"

namespace tandem::cluster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(HccnParsers, ReadRecordedOutputs) {
  EXPECT_EQ(*parse_device_ip(recorded("ip.txt")), "10.20.0.1");
  const auto vnic = parse_vnic(recorded("vnic.txt"));
  EXPECT_EQ(vnic->status, "UP");
  EXPECT_EQ(vnic->address, "192.168.0.1");
  EXPECT_EQ(*parse_link(recorded("link.txt")), "UP");
  EXPECT_EQ(*parse_net_health(recorded("net_health.txt")), "Success");
  EXPECT_EQ(*parse_netdetect(recorded("netdetect.txt")), "10.20.0.254");
  const auto gateway = parse_gateway(recorded("gateway.txt"));
  EXPECT_EQ(gateway->address, "10.20.0.254");
  EXPECT_EQ(gateway->interface_name, "eth0");
  EXPECT_EQ(*parse_lldp(recorded("lldp.txt")), "400GE1/1/5:1");
  EXPECT_EQ(*parse_tls_switch(recorded("tls.txt")), 0);
  const auto ping = parse_ping(recorded("ping.txt"));
  EXPECT_EQ(ping->sent, 3);
  EXPECT_EQ(ping->received, 3);
  EXPECT_EQ(ping->loss_percent, 0);
  EXPECT_EQ(parse_ping(recorded("ping_lost.txt"))->loss_percent, 100);
  EXPECT_EQ(parse_ping(recorded("hccs_ping.txt"))->loss_percent, 0);
  const auto pod = parse_super_pod(recorded("spod_info.txt"));
  EXPECT_EQ(pod->super_device_id, "4587520");
  EXPECT_EQ(pod->super_pod_id, "0");
  EXPECT_EQ(parse_device_ids(recorded("npu_smi_list.txt"))->size(), 16U);
}

TEST(HccnParsers, TakeOtherSpacingAndLineEnds) {
  EXPECT_EQ(*parse_device_ip("  ipaddr : 10.0.0.1 \r\n"), "10.0.0.1");
  EXPECT_EQ(*parse_link("Link Status:DOWN\r\n"), "DOWN");
  EXPECT_EQ(parse_gateway("default gateway: 10.0.0.254")->address, "10.0.0.254");
  EXPECT_EQ(*parse_net_health("net health status: Receive timeout\n"), "Receive timeout");
  EXPECT_EQ(*parse_netdetect("netdetect address: 0.0.0.0"), "0.0.0.0");
}

TEST(HccnParsers, RefuseHostileOutputs) {
  const std::vector<std::function<bool(std::string_view)>> parsers = {
      [](auto text) { return parse_device_ip(text).has_value(); },
      [](auto text) { return parse_vnic(text).has_value(); },
      [](auto text) { return parse_link(text).has_value(); },
      [](auto text) { return parse_net_health(text).has_value(); },
      [](auto text) { return parse_netdetect(text).has_value(); },
      [](auto text) { return parse_gateway(text).has_value(); },
      [](auto text) { return parse_lldp(text).has_value(); },
      [](auto text) { return parse_tls_switch(text).has_value(); },
      [](auto text) { return parse_ping(text).has_value(); },
      [](auto text) { return parse_super_pod(text).has_value(); },
      [](auto text) { return parse_device_ids(text).has_value(); },
  };
  const std::string binary("\x00\xff:\x01\n:::\n\n", 10);
  const std::vector<std::string> outputs = {"",
                                            "\n\n",
                                            ":",
                                            binary,
                                            std::string(100000, 'x'),
                                            std::string(100000, ':'),
                                            "Cmd os exec fail.",
                                            "ipaddr:",
                                            "ipaddr:10.20.0",
                                            "ipaddr:256.1.1.1",
                                            "ipaddr:10.20.0.1.5",
                                            "ipaddr:1e1.2.3.4",
                                            "vnic ipaddr: 192.168.0.1",
                                            "link status:",
                                            "net health status: ",
                                            "netdetect address: gone",
                                            "default gateway:, Iface:eth0",
                                            "Ifname:\t\n",
                                            "tls switch[",
                                            "tls switch[2]",
                                            "tls switch[00]",
                                            "101% packet loss",
                                            "% packet loss",
                                            "nan% packet loss",
                                            "1.2.3% packet loss",
                                            "SDID : 12",
                                            "SDID : -1\nSuper Pod ID : 0",
                                            "Total Count : 8",
                                            "Total Count : 99999999999999\nChip Count : 1",
                                            "Total Count : 1024\nChip Count : 2",
                                            "Total Count : -8\nChip Count : 1"};
  for (std::size_t parser = 0; parser < parsers.size(); ++parser)
    for (const std::string& output : outputs)
      EXPECT_FALSE(parsers[parser](output)) << "parser " << parser << ": " << output.substr(0, 60);
}

TEST(HccnParsers, ErrorsQuoteWhatWasFound) {
  EXPECT_THAT(parse_device_ip("Cmd os exec fail.").error().message(), HasSubstr("found 'Cmd os exec fail.'"));
  EXPECT_THAT(parse_link("").error().message(), HasSubstr("an empty output"));
  EXPECT_THAT(parse_link("a\x1b[2J\nb").error().message(), HasSubstr("'a.[2J | b'"));
}

TEST(HccnConf, ReadsKeysOfDevices) {
  const auto conf = parse_hccn_conf(recorded("hccn.conf"));
  ASSERT_TRUE(conf) << conf.error().message();
  EXPECT_EQ(conf->at(0).at("address"), "10.20.0.1");
  EXPECT_EQ(conf->at(0).at("send_arp_status"), "1");
  EXPECT_EQ(conf->at(1).at("address"), "10.20.0.2");
  EXPECT_TRUE(parse_hccn_conf("# comment\n\n address_3 = 10.0.0.1 \r\n")->contains(3));
}

TEST(HccnConf, ErrorsNameTheLine) {
  for (const char* line : {"address_0", "address=10.0.0.1", "_0=1", "address_x=10.0.0.1", "address_-1=10.0.0.1",
                           "address_99999=10.0.0.1", "address_0=10.0.0", "=", "junk"}) {
    const auto conf = parse_hccn_conf(std::string("netmask_0=255.255.255.0\n") + line);
    ASSERT_FALSE(conf) << line;
    EXPECT_THAT(conf.error().message(), HasSubstr("line 2")) << line;
  }
  EXPECT_EQ(read_hccn_conf("tests/no-such-file").error().code(), Code::kNotFound);
}

TEST(Hccn, AsksTheToolAndReportsItsFailure) {
  HccnStandIn runner;
  const Hccn hccn(runner, "/opt/hccn_tool", milliseconds(100));
  EXPECT_EQ(*parse_device_ip(*hccn.ask(2, {"-ip", "-g"})), "10.20.0.3");
  EXPECT_EQ(runner.asked().at(0), "/opt/hccn_tool -i 2 -ip -g");
  runner.replace("-i 2 -ip -g", "device is not there", 255);
  const auto failed = hccn.ask(2, {"-ip", "-g"});
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("'/opt/hccn_tool -i 2 -ip -g' ended with exit code 255"));
  EXPECT_THAT(failed.error().message(), HasSubstr("device is not there"));
  runner.replace("-t spod-info -i 1 -c 1", recorded("spod_info.txt"));
  EXPECT_EQ(hccn.super_pod(3)->super_device_id, "4587520");
}

TEST(ProcessRunner, GivesOutputAndExitCode) {
  const auto runner = process_runner();
  const auto output = runner->run({"sh", "-c", "echo out; echo err >&2; exit 3"}, milliseconds(10000));
  ASSERT_TRUE(output) << output.error().message();
  EXPECT_EQ(output->exit_code, 3);
  EXPECT_EQ(output->text, "out\nerr\n");
  EXPECT_EQ(runner->run({"/no/such/tool"}, milliseconds(1000)).error().code(), Code::kNotFound);
}

TEST(ProcessRunner, KillsWhatDoesNotEndAndBoundsTheOutput) {
  const auto runner = process_runner();
  const auto start = std::chrono::steady_clock::now();
  const auto slow = runner->run({"sh", "-c", "sleep 30"}, milliseconds(100));
  EXPECT_EQ(slow.error().code(), Code::kDeadlineExceeded);
  // A grandchild that keeps the pipe open, and a child that closes it and stays.
  EXPECT_EQ(runner->run({"sh", "-c", "exec >&- 2>&-; sleep 30"}, milliseconds(100)).error().code(),
            Code::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  const auto much = runner->run({"sh", "-c", "head -c 3000000 /dev/zero"}, milliseconds(10000));
  ASSERT_TRUE(much) << much.error().message();
  EXPECT_EQ(much->text.size(), 1U << 20);
}

}  // namespace
}  // namespace tandem::cluster
