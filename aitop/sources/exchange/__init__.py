"""What torch, NCCL and the kernel say of the exchange between ranks; asked for only while everything stands still."""
