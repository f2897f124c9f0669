"""Making a registry, and opening one, as the network file says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.base.errors import ConfigError, UsageError
from shoal.base.ids import NodeId, parse_node_id
from shoal.identity import Entropy, PrivateKey
from shoal.registry import contracts
from shoal.registry.block_file import BlockFile, sync_folder
from shoal.registry.block_follower import Follower
from shoal.registry.chain import Chain
from shoal.registry.config import RegistrySection
from shoal.registry.contract_registry import ContractRegistry
from shoal.registry.sender import Sender

if TYPE_CHECKING:
    from shoal.registry.embedded import EmbeddedChain
    from shoal.registry.rpc_chain import RpcChain

BLOCKS_FILE = "blocks"
STREAMS_BLOCK = 3  # of an embedded chain: two directories, and then the contract that names them


async def open_registry(
    section: RegistrySection, folder: Path, key: PrivateKey | None
) -> ContractRegistry:
    """The registry of a network file; paths begin at its folder. Without a key, to read only."""
    if section.folder is not None:
        embedded = _embedded_chain()(BlockFile(folder / section.folder / BLOCKS_FILE))
        return await _opened(embedded, embedded.contract_of(STREAMS_BLOCK), section, key)
    if section.contract is None:
        raise ConfigError(
            "registry.contract: write the address that `shoal registry deploy` printed"
        )
    chain = await _reach(section)
    return await _opened(chain, parse_node_id(section.contract), section, key)


async def deploy_registry(
    section: RegistrySection, folder: Path, key: PrivateKey, entropy: Entropy
) -> NodeId:
    """Make a registry, and give the address of its Streams contract. The key's owner is the admin
    of its directories."""
    if section.folder is not None:
        return await _deploy_embedded(folder / section.folder, section, key, entropy)
    if section.contract is not None:
        raise ConfigError(
            f"registry.contract: {section.contract} is named already: remove it to make another"
        )
    chain = await _reach(section)
    try:
        return await deploy(chain, section, key)
    finally:
        await chain.close()


async def deploy(chain: Chain, section: RegistrySection, key: PrivateKey) -> NodeId:
    """Put the three contracts on a chain."""
    follower = Follower(chain, (), section.depth, section.head_age_s_max, lambda changes: None)
    await follower.poll()
    sender = Sender(chain, follower, section)

    async def make(data: bytes) -> NodeId:
        receipt = await sender.send(key, None, data)
        assert receipt.contract is not None  # it was sent to nobody
        return receipt.contract

    trackers = await make(contracts.directory().deployment())
    storage_nodes = await make(contracts.directory().deployment())
    return await make(contracts.streams().deployment(trackers, storage_nodes))


async def _deploy_embedded(
    folder: Path, section: RegistrySection, key: PrivateKey, entropy: Entropy
) -> NodeId:
    path = folder / BLOCKS_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = folder / f".{BLOCKS_FILE}.{entropy.token(8).hex()}"
        try:
            chain = _embedded_chain().create(unfinished, entropy)
            contract = await deploy(chain, section, key)
            await chain.close()
            # A link and not a rename: it fails if there is one already.
            os.link(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        sync_folder(folder)
        sync_folder(folder.parent)
    except FileExistsError:
        raise UsageError(
            f"there is a registry {path} already: name another folder, or move it away"
        ) from None
    except OSError as error:
        raise UsageError(f"registry {path} cannot be made: {error.strerror}") from error
    return contract


def _embedded_chain() -> type[EmbeddedChain]:
    """Imported when it is needed: not every Python has an EVM, and a chain elsewhere needs none."""
    try:
        from shoal.registry.embedded import EmbeddedChain
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"registry.folder: an embedded registry needs the package {error.name}, which is made"
            " for Python 3.11 and 3.12: use one of these, or a registry on a chain (registry.url)"
        ) from error
    return EmbeddedChain


async def _reach(section: RegistrySection) -> RpcChain:
    from shoal.registry.rpc_chain import RpcChain  # with an HTTP client, which few nodes need

    assert section.url is not None  # checked when it was read: a folder, or an address
    return await RpcChain.open(
        section.url, request_s=section.request_s, fee_gwei_max=section.fee_gwei_max
    )


async def _opened(
    chain: Chain, contract: NodeId, section: RegistrySection, key: PrivateKey | None
) -> ContractRegistry:
    try:
        return await ContractRegistry.open(chain, contract, section, key)
    except BaseException:
        await chain.close()
        raise
