"""Which streams there are, who may do what with them, and where trackers and storage nodes are.

port           what a registry answers and does
config         [registry] of the network file
opening        making one, and opening one
client         the port, over a chain: calls, answers, changes
members        who may read a stream, and their public keys
cache          what was read
follower       which block counts, what changed, how old that is
sender         a change, from its signature until it is final
chain          what is needed of a chain
embedded       the EVM in this process
block_file     its blocks on disk
rpc_chain      any Ethereum chain
json_rpc       its endpoint
contracts      the compiled contracts
abi, rlp       Ethereum's encodings
transactions   signed, and read again

The contracts themselves are in contracts/ of the source tree; see docs/registry.md.
"""
