"""What Shoal is compared with, as pure machines and policies: Floodsub, and a topology policy.

Same purity rules as protocols.
"""
