"""`scanbridge check`: does everything that the configuration names work?"""
